#include "graph/profile/sac_statistics.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace acplan::graph {
namespace {

int Find(std::vector<int>& parent, int i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

// The reason why an operator must be saved or recomputed.
struct Reason {
  int op;
  std::string text;
  bool is_pattern = false;
};

std::optional<std::string> FirstMatch(
    const std::string& name, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (MatchesPattern(name, pattern)) return pattern;
  }
  return std::nullopt;
}

// The rules that apply to single operators. Rules of PyTorch have precedence over patterns.
struct SingleRules {
  std::vector<std::optional<Reason>> save, recompute;
};

SingleRules RulesOf(const SacStatistics& sac,
                    const OperatorPatterns& patterns) {
  const int n = static_cast<int>(sac.memory.size());
  SingleRules rules;
  rules.save.resize(n);
  rules.recompute.resize(n);
  for (const int op : sac.view_like_ops) {
    rules.recompute[op] = {op, "is view-like and must be recomputed"};
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent) {
      rules.save[op] = {op, "is in place on itself and must be saved"};
    }
  }
  if (sac.force_store_random) {
    for (const int op : sac.rand_ops) {
      if (!rules.save[op]) {
        rules.save[op] = {op, "is random and must be saved here"};
      }
    }
  }
  if (patterns.empty()) return rules;
  for (int op = 0; op < n; ++op) {
    const std::string& name = sac.func_names[op];
    if (const auto pattern = FirstMatch(name, patterns.save);
        pattern && !rules.save[op]) {
      rules.save[op] = {
          op, fmt::format("must be saved (--save '{}')", *pattern), true};
    }
    if (const auto pattern = FirstMatch(name, patterns.recompute);
        pattern && !rules.recompute[op]) {
      rules.recompute[op] = {
          op, fmt::format("must be recomputed (--recompute '{}')", *pattern),
          true};
    }
  }
  return rules;
}

std::string Describe(const SacStatistics& sac, const Reason& a,
                     const Reason& b) {
  if (a.op == b.op) {
    return fmt::format("operator {} '{}' {} and {}", a.op, sac.func_names[a.op],
                       a.text, b.text);
  }
  return fmt::format(
      "operator {} '{}' {}, operator {} '{}' {}, and both are "
      "tied to each other",
      a.op, sac.func_names[a.op], a.text, b.op, sac.func_names[b.op], b.text);
}

}  // namespace

bool MatchesPattern(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

int64_t OperatorGroups::TotalBytes() const {
  int64_t bytes = 0;
  for (const OperatorGroup& group : groups) bytes += group.memory;
  return bytes;
}

int64_t OperatorGroups::ForcedBytes() const {
  int64_t bytes = 0;
  for (const OperatorGroup& group : groups) {
    if (group.rule == GroupRule::kSave) bytes += group.memory;
  }
  return bytes;
}

double OperatorGroups::ForcedRuntime() const {
  double ms = 0;
  for (const OperatorGroup& group : groups) {
    if (group.rule == GroupRule::kRecompute) ms += group.runtime;
  }
  return ms;
}

OperatorGroups GroupOperators(const SacStatistics& sac,
                              const OperatorPatterns& patterns) {
  const int n = static_cast<int>(sac.memory.size());
  // The root of a set is its first operator.
  std::vector<int> parent(n);
  std::iota(parent.begin(), parent.end(), 0);
  const auto tie = [&](int a, int b) {
    a = Find(parent, a);
    b = Find(parent, b);
    parent[std::max(a, b)] = std::min(a, b);
  };
  for (const auto& [op, source] : sac.inplace_ops) tie(op, source);
  for (size_t k = 1; k < sac.rand_ops.size(); ++k) {
    tie(sac.rand_ops[k - 1], sac.rand_ops[k]);
  }

  const SingleRules rules = RulesOf(sac, patterns);
  OperatorGroups result;
  result.group_of.resize(n);
  IndexedVector<GroupId, std::optional<Reason>> save, recompute;
  for (int op = 0; op < n; ++op) {
    const int root = Find(parent, op);
    if (root == op) {
      result.group_of[op] = result.groups.Add({});
      save.emplace_back();
      recompute.emplace_back();
    }
    const GroupId g = result.group_of[op] = result.group_of[root];
    result.groups[g].ops.push_back(op);
    result.groups[g].memory += sac.memory[op];
    result.groups[g].runtime += sac.runtimes[op];
    // A reason from PyTorch's rules is reported in preference to one from a pattern.
    const auto keep = [](std::optional<Reason>& current,
                         const std::optional<Reason>& reason) {
      if (reason &&
          (!current || (current->is_pattern && !reason->is_pattern))) {
        current = reason;
      }
    };
    keep(save[g], rules.save[op]);
    keep(recompute[g], rules.recompute[op]);
  }
  for (const GroupId g : result.groups.ids()) {
    if (save[g]) {
      result.groups[g].rule = GroupRule::kSave;
    } else if (recompute[g]) {
      result.groups[g].rule = GroupRule::kRecompute;
    }
    if (!save[g] || !recompute[g]) continue;
    const bool is_pattern = save[g]->is_pattern || recompute[g]->is_pattern;
    if (result.contradiction.empty() ||
        (result.contradicts_pattern && !is_pattern)) {
      result.contradiction = Describe(sac, *save[g], *recompute[g]);
      result.contradicts_pattern = is_pattern;
    }
  }
  return result;
}

int64_t ForcedSavedBytes(const SacStatistics& sac) {
  std::vector<bool> view_like(sac.memory.size(), false);
  for (const int op : sac.view_like_ops) view_like[op] = true;
  SacStatistics others = sac;
  others.view_like_ops.clear();
  std::erase_if(others.rand_ops, [&](int op) { return view_like[op]; });
  std::erase_if(others.inplace_ops, [&](const auto& pair) {
    return view_like[pair.first] || view_like[pair.second];
  });
  return GroupOperators(others).ForcedBytes();
}

}  // namespace acplan::graph
