#include "graph/profile/module_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::graph {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// Compares names with '.' before every other character, which puts a module's submodules
// directly after it.
bool ComponentsLess(std::string_view a, std::string_view b) {
  const auto [at_a, at_b] =
      std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at_b == b.end()) return false;
  if (at_a == a.end()) return true;
  if (*at_a == '.' || *at_b == '.') return *at_a == '.';
  return static_cast<unsigned char>(*at_a) < static_cast<unsigned char>(*at_b);
}

std::vector<int> Parents(const std::vector<Module>& modules,
                         const std::vector<int>& by_name) {
  std::vector<int> parents(modules.size(), -1);
  std::vector<int> open;
  for (int module : by_name) {
    while (!open.empty() &&
           !IsSubmodule(modules[module].fqn, modules[open.back()].fqn))
      open.pop_back();
    if (!open.empty()) parents[module] = open.back();
    open.push_back(module);
  }
  return parents;
}

// Sets the parent of each module that is directly inside of a segment to that segment.
std::vector<int> WithSegments(
    std::vector<int> parents, const std::vector<Module>& modules,
    const std::unordered_map<std::string, int>& by_fqn) {
  for (size_t i = 0; i < modules.size(); ++i) {
    if (!modules[i].segment.empty()) {
      parents[i] = by_fqn.at(modules[i].segment);
    }
  }
  return parents;
}

std::vector<int> Positions(const std::vector<std::string>& order,
                           const std::vector<Module>& modules,
                           const std::unordered_map<std::string, int>& by_fqn,
                           int absent) {
  std::vector<int> positions(modules.size(), absent);
  for (size_t i = order.size(); i-- > 0;)
    if (const auto module = by_fqn.find(order[i]); module != by_fqn.end())
      positions[module->second] = static_cast<int>(i);
  return positions;
}

// Returns the key that orders each module among its siblings: its first call, or that of
// its first called descendant.
std::vector<int> Places(std::vector<int> first_call,
                        const std::vector<int>& by_name,
                        const std::vector<int>& parents) {
  std::vector<int> first_in_subtree = first_call;
  for (size_t i = by_name.size(); i-- > 0;) {
    const int module = by_name[i];
    const int parent = parents[module];
    if (parent >= 0)
      first_in_subtree[parent] =
          std::min(first_in_subtree[parent], first_in_subtree[module]);
    if (first_call[module] == kNever)
      first_call[module] = first_in_subtree[module];
  }
  return first_call;
}

bool IsPostOrder(const std::vector<ModuleTree::Node>& nodes) {
  int last = -1;
  auto finish = [&](int node) {
    if (nodes[node].fw_post < 0) return true;
    const bool later = nodes[node].fw_post > last;
    last = nodes[node].fw_post;
    return later;
  };
  std::vector<int> open;
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    while (!open.empty() && open.back() != nodes[i].parent) {
      if (!finish(open.back())) return false;
      open.pop_back();
    }
    open.push_back(i);
  }
  while (!open.empty()) {
    if (!finish(open.back())) return false;
    open.pop_back();
  }
  return true;
}

size_t Mix(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15U + (seed << 6) + (seed >> 2));
}

template <typename T>
size_t HashAll(size_t seed, const std::vector<T>& values) {
  seed = Mix(seed, values.size());
  for (const T& value : values) seed = Mix(seed, std::hash<T>()(value));
  return seed;
}

bool IsSameSac(const std::optional<SacStatistics>& a,
               const std::optional<SacStatistics>& b) {
  if (!a || !b) return !a && !b;
  auto decisive = [](const SacStatistics& s) {
    return std::tie(s.func_names, s.runtimes, s.memory, s.view_like_ops,
                    s.rand_ops, s.inplace_ops, s.force_store_random);
  };
  return decisive(*a) == decisive(*b);
}

bool IsInterchangeable(const Module& a, const Module& b) {
  auto decisive = [](const Module& m) {
    return std::tie(m.is_leaf, m.param_per_module, m.grad_per_module,
                    m.act_fw_per_module, m.input_per_module,
                    m.output_per_module, m.fw_runtime_per_module,
                    m.buffer_per_module, m.held_per_module, m.calls,
                    m.no_backward, m.torch_fit);
  };
  return decisive(a) == decisive(b) && IsSameSac(a.sac, b.sac);
}

size_t HashModule(const Module& m) {
  size_t seed = m.is_leaf ? 1 : 0;
  for (int64_t bytes : {m.param_per_module, m.act_fw_per_module,
                        m.input_per_module, m.output_per_module})
    seed = Mix(seed, std::hash<int64_t>()(bytes));
  seed = Mix(seed, std::hash<double>()(m.fw_runtime_per_module));
  if (m.sac) {
    seed = HashAll(seed, m.sac->memory);
    seed = HashAll(seed, m.sac->runtimes);
  }
  return seed;
}

// A numbering of values: two values get the same number if and only if they are equal.
template <typename Key, typename Hash, typename Equal>
class Numbering {
 public:
  Numbering(Hash hash, Equal equal) : numbers_(16, hash, equal) {}
  int NumberOf(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int>(numbers_.size()))
        .first->second;
  }

 private:
  std::unordered_map<Key, int, Hash, Equal> numbers_;
};

// Returns a number for each node. Two nodes get the same number if and only if their
// subtrees are interchangeable.
std::vector<int> SubtreeClasses(const Profile& profile,
                                const ModuleTree& tree) {
  auto hash = [](const Module* m) { return HashModule(*m); };
  auto equal = [](const Module* a, const Module* b) {
    return IsInterchangeable(*a, *b);
  };
  Numbering<const Module*, decltype(hash), decltype(equal)> own(hash, equal);

  auto hash_key = [](const std::vector<int>& key) { return HashAll(0, key); };
  Numbering<std::vector<int>, decltype(hash_key), std::equal_to<>> subtrees(
      hash_key, std::equal_to<>());

  std::vector<int> classes(tree.size());
  std::vector<std::vector<int>> keys(tree.size());
  for (int i = tree.size() - 1; i >= 0; --i) {
    std::vector<int>& key = keys[i];
    key.push_back(tree.node(i).fw_post >= 0 ? 1 : 0);
    key.push_back(own.NumberOf(&profile.modules[tree.node(i).module]));
    std::reverse(key.begin(), key.end());
    classes[i] = subtrees.NumberOf(key);
    key = {};
    if (const int parent = tree.node(i).parent; parent >= 0)
      keys[parent].push_back(classes[i]);
  }
  return classes;
}

}  // namespace

bool IsSelfOrSubmodule(std::string_view descendant, std::string_view ancestor) {
  return descendant == ancestor || IsSubmodule(descendant, ancestor);
}

bool IsSubmodule(std::string_view descendant, std::string_view ancestor) {
  return descendant.size() > ancestor.size() &&
         descendant[ancestor.size()] == '.' && descendant.starts_with(ancestor);
}

ModuleTree::ModuleTree(const Profile& profile) {
  const std::vector<Module>& modules = profile.modules;
  const int n = static_cast<int>(modules.size());
  for (int i = 0; i < n; ++i) by_fqn_.try_emplace(modules[i].fqn, i);

  std::vector<int> by_name(n);
  std::iota(by_name.begin(), by_name.end(), 0);
  std::ranges::stable_sort(by_name, [&](int a, int b) {
    return ComponentsLess(modules[a].fqn, modules[b].fqn);
  });
  const std::vector<int> parents =
      WithSegments(Parents(modules, by_name), modules, by_fqn_);
  const std::vector<int> places =
      Places(Positions(profile.order.fw_pre, modules, by_fqn_, kNever), by_name,
             parents);
  const std::vector<int> fw_post =
      Positions(profile.order.fw_post, modules, by_fqn_, -1);

  // The children of each parent are contiguous, the last one first, as the stack needs
  // them.
  std::vector<int> siblings(n);
  std::iota(siblings.begin(), siblings.end(), 0);
  std::ranges::sort(siblings, std::greater<>(), [&](int module) {
    return std::tuple(parents[module], places[module], module);
  });
  std::vector<std::span<const int>> children(n + 1);
  for (auto first = siblings.begin(); first != siblings.end();) {
    const int parent = parents[*first];
    const auto last = std::find_if(first, siblings.end(), [&](int module) {
      return parents[module] != parent;
    });
    children[parent + 1] = std::span<const int>(first, last);
    first = last;
  }

  nodes_.reserve(n);
  std::vector<int> node_of(n, -1);
  std::vector<int> stack(children[0].begin(), children[0].end());
  while (!stack.empty()) {
    const int module = stack.back();
    stack.pop_back();
    const int parent = parents[module] < 0 ? -1 : node_of[parents[module]];
    node_of[module] = static_cast<int>(nodes_.size());
    nodes_.push_back(
        {.module = module,
         .parent = parent,
         .subtree_size = 1,
         .depth = parent < 0 ? 0 : nodes_[parent].depth + 1,
         .fw_post = modules[module].calls > 0 ? fw_post[module] : -1});
    stack.insert(stack.end(), children[module + 1].begin(),
                 children[module + 1].end());
  }
  for (int i = n - 1; i >= 0; --i)
    if (nodes_[i].parent >= 0)
      nodes_[nodes_[i].parent].subtree_size += nodes_[i].subtree_size;
  for (auto& [fqn, index] : by_fqn_) index = node_of[index];
  post_order_matches_tree_ = IsPostOrder(nodes_);
}

std::vector<int> ModuleTree::Roots() const {
  std::vector<int> roots;
  for (int i = 0; i < size(); i += nodes_[i].subtree_size) roots.push_back(i);
  return roots;
}

std::vector<int> ModuleTree::Children(int i) const {
  std::vector<int> children;
  const int end = i + nodes_[i].subtree_size;
  for (int j = i + 1; j < end; j += nodes_[j].subtree_size)
    children.push_back(j);
  return children;
}

std::optional<int> ModuleTree::Find(std::string_view fqn) const {
  const auto entry = by_fqn_.find(std::string(fqn));
  if (entry == by_fqn_.end()) return std::nullopt;
  return entry->second;
}

std::vector<int> FindModules(const Profile& profile, const ModuleTree& tree,
                             const std::vector<std::string>& names,
                             std::string_view what) {
  std::vector<int> nodes;
  for (const std::string& name : names) {
    if (const std::optional<int> node = tree.Find(name)) {
      nodes.push_back(*node);
      continue;
    }
    std::vector<std::string> known_names;
    for (const ModuleTree::Node& node : tree.nodes())
      known_names.push_back(profile.modules[node.module].fqn);
    const std::vector<std::string> nearest = NearestNames(name, known_names);
    throw InputError(fmt::format(
        "{}: expected the name of a module, found {}{}", what,
        Quoted(name, 200),
        nearest.empty()
            ? ""
            : fmt::format("; nearest: {}", fmt::join(nearest, ", "))));
  }
  return nodes;
}

std::vector<std::vector<int>> IdenticalBlocks(const Profile& profile,
                                              const ModuleTree& tree) {
  const std::vector<int> classes = SubtreeClasses(profile, tree);
  std::vector<std::vector<int>> groups;
  std::vector<std::vector<int>> open = {tree.Roots()};
  while (!open.empty()) {
    const std::vector<int> siblings = std::move(open.back());
    open.pop_back();
    std::unordered_map<int, std::vector<int>> by_class;
    for (int node : siblings)
      if (tree.node(node).subtree_size > 1)
        by_class[classes[node]].push_back(node);
    for (int node : siblings) {
      const auto group = by_class.find(classes[node]);
      if (group == by_class.end() || group->second.front() != node) continue;
      open.push_back(tree.Children(node));
      if (group->second.size() > 1) groups.push_back(std::move(group->second));
      by_class.erase(group);
    }
  }
  std::ranges::sort(groups, {},
                    [](const auto& group) { return group.front(); });
  return groups;
}

}  // namespace acplan::graph
