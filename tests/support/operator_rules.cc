#include "tests/support/operator_rules.h"

#include <algorithm>

namespace acplan::test_support {

using graph::OperatorPatterns;
using graph::SacStatistics;

namespace {

bool MatchesFrom(const std::string& name, size_t i, const std::string& pattern,
                 size_t p) {
  if (p == pattern.size()) return i == name.size();
  if (pattern[p] == '*') {
    return MatchesFrom(name, i, pattern, p + 1) ||
           (i < name.size() && MatchesFrom(name, i + 1, pattern, p));
  }
  if (i == name.size()) return false;
  if (pattern[p] == '[') {
    const size_t end = pattern.find(']', p + 1);
    const std::string set = pattern.substr(p + 1, end - p - 1);
    return set.find(name[i]) != std::string::npos &&
           MatchesFrom(name, i + 1, pattern, end + 1);
  }
  return (pattern[p] == '?' || pattern[p] == name[i]) &&
         MatchesFrom(name, i + 1, pattern, p + 1);
}

bool MatchesAny(const std::string& name,
                const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return GlobMatches(name, pattern);
  });
}

}  // namespace

bool GlobMatches(const std::string& name, const std::string& pattern) {
  return MatchesFrom(name, 0, pattern, 0);
}

bool KeepsRules(const SacStatistics& sac, const OperatorPatterns& patterns,
                const std::vector<char>& save) {
  for (const int op : sac.view_like_ops) {
    if (save[op]) return false;
  }
  for (const int op : sac.rand_ops) {
    if (sac.force_store_random && !save[op]) return false;
    if (save[op] != save[sac.rand_ops.front()]) return false;
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent ? !save[op] : save[op] != save[parent]) return false;
  }
  for (size_t op = 0; op < save.size(); ++op) {
    const std::string& name = sac.func_names[op];
    if (!save[op] && MatchesAny(name, patterns.save)) return false;
    if (save[op] && MatchesAny(name, patterns.recompute)) return false;
  }
  return true;
}

RulesByLastOperator::RulesByLastOperator(const SacStatistics& sac,
                                         const OperatorPatterns& patterns)
    : rules_(sac.func_names.size()) {
  const auto tie = [&](int a, int b) {
    rules_[std::max(a, b)].same_as.push_back(std::min(a, b));
  };
  for (const int op : sac.view_like_ops) rules_[op].must_recompute = true;
  for (const int op : sac.rand_ops) {
    if (sac.force_store_random) rules_[op].must_save = true;
    if (op != sac.rand_ops.front()) tie(op, sac.rand_ops.front());
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent) {
      rules_[op].must_save = true;
    } else {
      tie(op, parent);
    }
  }
  for (int op = 0; op < ops(); ++op) {
    const std::string& name = sac.func_names[op];
    if (MatchesAny(name, patterns.save)) rules_[op].must_save = true;
    if (MatchesAny(name, patterns.recompute)) rules_[op].must_recompute = true;
  }
}

bool RulesByLastOperator::Allows(const std::vector<char>& save, int k) const {
  const Rules& rules = rules_[k];
  if (save[k] ? rules.must_recompute : rules.must_save) return false;
  return std::ranges::all_of(rules.same_as,
                             [&](int other) { return save[other] == save[k]; });
}

}  // namespace acplan::test_support
