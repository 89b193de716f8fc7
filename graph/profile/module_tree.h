#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/profile/profile.h"

namespace acplan::graph {

// Returns whether `descendant` is `ancestor` or below it, by whole name components: "a.b.1"
// is below "a.b", and neither below "a.b.10" nor below "b".
bool IsSelfOrSubmodule(std::string_view descendant, std::string_view ancestor);
// Returns the same, but false if both are equal.
bool IsSubmodule(std::string_view descendant, std::string_view ancestor);

// The tree of a profile's modules by name. A module's parent is the nearest module whose
// name is a proper prefix of its own by whole components; names in between that are no
// modules are skipped. Nodes are numbered in pre-order: parents before children, children
// in the order of their first call. A module that is never called has the place of its
// first called descendant, or, if it has none, comes after its called siblings. Several
// roots are legal.
class ModuleTree {
 public:
  struct Node {
    int module = 0;        // index into Profile::modules
    int parent = -1;       // node, -1 for a root
    int subtree_size = 1;  // the subtree of node i is [i, i + subtree_size)
    int depth = 0;         // 0 for a root
    // Position in forward post-order; -1 if the module is never called.
    int fw_post = -1;
  };

  explicit ModuleTree(const Profile& profile);

  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int i) const { return nodes_[i]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<int> Roots() const;
  std::vector<int> Children(int i) const;  // in node order

  // Returns the node of the module with this name, or nothing.
  std::optional<int> Find(std::string_view fqn) const;

  bool IsSelfOrAncestor(int ancestor, int descendant) const {
    return ancestor <= descendant &&
           descendant < ancestor + nodes_[ancestor].subtree_size;
  }
  // Returns an entry of the ancestor/descendant matrix of
  // torch.distributed._tools.ilp_utils: 1 if `column` is `row` or below it.
  int AdMatrix(int row, int column) const {
    return IsSelfOrAncestor(row, column) ? 1 : 0;
  }

  // Returns whether the forward post-order of the called modules is the post-order of this
  // tree. If so, the modules that have ended when a module ends its forward are a prefix of
  // the walk over the tree. It is not so if a child runs outside of its parent's forward.
  bool PostOrderMatchesTree() const { return post_order_matches_tree_; }

 private:
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> by_fqn_;
  bool post_order_matches_tree_ = true;
};

// Returns the nodes of the modules with these names. For an unknown name, throws InputError
// that begins with `what` (a flag) and has the nearest known names.
std::vector<int> FindModules(const Profile& profile, const ModuleTree& tree,
                             const std::vector<std::string>& names,
                             std::string_view what);

// Returns groups of two or more sibling nodes (roots are siblings) that offer the same
// choices: their whole subtrees have the same shape and the same statistics, apart from
// names, from statistics that depend on the place in the model (grad_total, act_total,
// act_bw_per_module, act_grad_per_module, snapshots; and bw_runtime_per_module, which
// PyTorch measures from the end of the forward pass for some modules) and from
// saved_autograd_ops, which nothing depends on. So swapping two nodes of a group changes
// neither recomputation nor the discarded bytes, but the rows of memory inside them may
// differ. Each group is in node order; groups are in the order of their first node. Leaves
// are left out, and so are groups inside blocks that are themselves in a group, except
// those inside the group's first block.
std::vector<std::vector<int>> IdenticalBlocks(const Profile& profile,
                                              const ModuleTree& tree);

}  // namespace acplan::graph
