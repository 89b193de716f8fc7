#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/profile/profile.h"

namespace acplan::graph {

// Returns whether `descendant` is `ancestor` or lies below it, by whole name
// components: "a.b.1" is below "a.b", and neither below "a.b.10" nor below "b".
bool IsSelfOrSubmodule(std::string_view descendant, std::string_view ancestor);
// As above, but not the same.
bool IsSubmodule(std::string_view descendant, std::string_view ancestor);

// The tree of a profile's modules by name. A module's parent is the nearest
// module whose name is a proper prefix of its own by whole components; names in
// between that are no modules are skipped. Nodes are numbered in pre-order:
// parents before children, children in the order of their first call; a module
// that is never called stands where its first called descendant does, and after
// its called siblings where it has none. Several roots are legal.
class ModuleTree {
 public:
  struct Node {
    int module = 0;        // index into Profile::modules
    int parent = -1;       // node, -1 for a root
    int subtree_size = 1;  // the subtree of node i is [i, i + subtree_size)
    int depth = 0;         // 0 for a root
    // Position in forward post-order; -1 where the module is never called.
    int fw_post = -1;
  };

  explicit ModuleTree(const Profile& profile);

  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int i) const { return nodes_[i]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<int> Roots() const;
  std::vector<int> Children(int i) const;  // in node order

  // The node of the module with this name.
  std::optional<int> Find(std::string_view fqn) const;

  bool IsSelfOrAncestor(int ancestor, int descendant) const {
    return ancestor <= descendant &&
           descendant < ancestor + nodes_[ancestor].subtree_size;
  }
  // The ancestor/descendant matrix of torch.distributed._tools.ilp_utils as a
  // view: 1 where `column` is `row` or lies below it.
  int AdMatrix(int row, int column) const {
    return IsSelfOrAncestor(row, column) ? 1 : 0;
  }

  // Returns whether the forward post-order of the called modules is the
  // post-order of this tree. Then what has finished when a module ends its
  // forward is a prefix of the walk over the tree; it is not where a child runs
  // outside its parent's forward.
  bool PostOrderMatchesTree() const { return post_order_matches_tree_; }

 private:
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> by_fqn_;
  bool post_order_matches_tree_ = true;
};

// The nodes of the modules with these names. Throws InputError that begins with
// `what` (a flag) for an unknown one, with the nearest known names.
std::vector<int> FindModules(const Profile& profile, const ModuleTree& tree,
                             const std::vector<std::string>& names,
                             std::string_view what);

// Groups of two or more sibling nodes (roots are siblings) that offer the same
// choices: their whole subtrees have the same shape and the same statistics,
// apart from names, from what depends on the place in the model (grad_total,
// act_total, act_bw_per_module, act_grad_per_module, snapshots; and
// bw_runtime_per_module, which PyTorch measures from the end of the forward
// pass for some modules) and from saved_autograd_ops, which nothing depends on.
// So swapping two of a group changes neither recomputation nor the bytes that
// are discarded, but the rows of memory inside them may differ. Each group is
// in node order; groups are in the order of their first node. Leaves are left
// out, and so are groups inside blocks that are themselves in a group, except
// those inside the group's first block.
std::vector<std::vector<int>> IdenticalBlocks(const Profile& profile,
                                              const ModuleTree& tree);

}  // namespace acplan::graph
