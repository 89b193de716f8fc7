#include "problems/check/policy_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "problems/check/stated_number.h"

namespace acplan::problems {

using graph::OperatorDecision;
using graph::SacStatistics;

std::optional<std::string> BrokenOperatorRule(
    const SacStatistics& sac, const graph::OperatorPatterns& patterns,
    const std::function<OperatorDecision(int)>& decision, bool draws_alone) {
  const auto saves = [&](int k) { return graph::Keeps(decision(k)); };
  const auto runs_again = [&](int k) {
    return decision(k) == OperatorDecision::kRecompute;
  };
  const auto say = [&](int k, std::string_view rule) {
    return fmt::format("operator {} '{}' {}", k, sac.func_names[k], rule);
  };
  for (const int k : sac.view_like_ops) {
    if (saves(k)) return say(k, "is view-like and must be recomputed");
  }
  for (const int k : sac.rand_ops) {
    if (sac.force_store_random && !draws_alone && runs_again(k)) {
      return say(k, "is random and must be saved here");
    }
    if (!draws_alone && saves(k) != saves(sac.rand_ops.front())) {
      return say(k, "is random and not treated as the other random operators");
    }
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent && runs_again(op)) {
      return say(op, "is in place and must be saved");
    }
    // Either may be left out (skip_rules.h): an operator on something that its
    // parent does not keep, or one that read its parent's result before that
    // was written to, may be kept alone.
    const bool is_left_out =
        draws_alone && (decision(op) == OperatorDecision::kSkip ||
                        decision(parent) == OperatorDecision::kSkip);
    if (saves(op) != saves(parent) && !is_left_out) {
      return say(op, "is in place and not treated as its parent");
    }
    if (runs_again(op) && decision(parent) == OperatorDecision::kSkip) {
      return say(
          op, "is in place and runs again on the result of a skipped operator");
    }
  }
  for (size_t k = 0; k < sac.func_names.size(); ++k) {
    const auto op = static_cast<int>(k);
    const auto matches = [&](const std::string& pattern) {
      return graph::MatchesPattern(sac.func_names[k], pattern);
    };
    if (runs_again(op) && std::ranges::any_of(patterns.save, matches)) {
      return say(op, "must be saved (--save)");
    }
    if (saves(op) && std::ranges::any_of(patterns.recompute, matches)) {
      return say(op, "must be recomputed (--recompute)");
    }
  }
  return std::nullopt;
}

double ForcedBytes(const SacStatistics& sac) {
  const size_t n = sac.memory.size();
  std::vector<char> forced(n, 0);
  std::vector<char> view(n, 0);
  for (const int k : sac.view_like_ops) view[k] = 1;
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent) forced[op] = 1;
  }
  if (sac.force_store_random) {
    for (const int k : sac.rand_ops) forced[k] = 1;
  }
  for (bool changed = true; changed;) {
    changed = false;
    const auto tie = [&](int a, int b) {
      if (view[a] || view[b] || forced[a] == forced[b]) return;
      forced[a] = forced[b] = 1;
      changed = true;
    };
    for (const auto& [op, parent] : sac.inplace_ops) tie(op, parent);
    for (size_t k = 1; k < sac.rand_ops.size(); ++k) {
      tie(sac.rand_ops[k - 1], sac.rand_ops[k]);
    }
  }
  double bytes = 0;
  for (size_t k = 0; k < n; ++k) {
    if (forced[k] && !view[k]) bytes += static_cast<double>(sac.memory[k]);
  }
  return bytes;
}

std::optional<std::string> FirstBrokenRule(
    const SacStatistics& sac, const StatedPolicy& policy,
    const graph::OperatorPatterns& patterns) {
  const size_t n = sac.memory.size();
  if (policy.save.size() != n) {
    return fmt::format("{} decisions for {} operators", policy.save.size(), n);
  }
  const auto decision = [&](int k) {
    return graph::SaveOrRecompute(policy.save[k] != 0);
  };
  if (auto broken = BrokenOperatorRule(sac, patterns, decision)) return broken;
  int64_t total = 0;
  int64_t saved = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
  for (size_t k = 0; k < n; ++k) {
    total += sac.memory[k];
    if (policy.save[k]) saved += sac.memory[k];
    (policy.save[k] ? saved_ms : recompute_ms) += sac.runtimes[k];
  }
  const double capacity =
      std::ceil(policy.memory_budget * static_cast<double>(total));
  if (static_cast<double>(policy.capacity_bytes) != capacity) {
    return fmt::format("the policy says its capacity is {} bytes; it is {:.0f}",
                       policy.capacity_bytes, capacity);
  }
  if (saved > policy.capacity_bytes) {
    return fmt::format("{} bytes are saved, more than the capacity of {}",
                       saved, policy.capacity_bytes);
  }
  if (policy.saved_bytes != saved) {
    return fmt::format("the policy says it saves {} bytes; it is {}",
                       policy.saved_bytes, saved);
  }
  if (IsFalse(policy.saved_ms, saved_ms)) {
    return fmt::format("the policy says it saves {} ms; it is {}",
                       policy.saved_ms, saved_ms);
  }
  if (IsFalse(policy.recompute_ms, recompute_ms)) {
    return fmt::format("the policy says it recomputes {} ms; it is {}",
                       policy.recompute_ms, recompute_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
