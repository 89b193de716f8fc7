#include "tests/problems/operator_enumeration.h"

#include <algorithm>
#include <tuple>

#include "tests/support/operator_rules.h"

namespace acplan::problems {

OperatorEnumeration::OperatorEnumeration(
    const graph::SacStatistics& sac, const graph::OperatorPatterns& patterns) {
  const size_t n = sac.memory.size();
  struct Legal {
    int64_t bytes;
    double ms;
    uint32_t recomputed;  // the first operator in the highest bit
  };
  std::vector<Legal> legal;
  test_support::ForEachLegalPolicy(
      sac, patterns, [&](const std::vector<char>& save) {
        Legal policy{0, 0, 0};
        for (size_t k = 0; k < n; ++k) {
          policy.recomputed = 2 * policy.recomputed + (save[k] ? 0 : 1);
          if (save[k]) {
            policy.bytes += sac.memory[k];
          } else {
            policy.ms += sac.runtimes[k];
          }
        }
        legal.push_back(policy);
      });
  std::ranges::sort(legal, {}, [](const Legal& policy) {
    return std::tuple(policy.bytes, policy.ms, policy.recomputed);
  });
  for (const Legal& policy : legal) {
    if (!pareto_.empty() && policy.ms >= pareto_.back().recompute_ms) continue;
    std::vector<char> save(n);
    for (size_t k = 0; k < n; ++k) {
      save[k] = policy.recomputed >> (n - 1 - k) & 1 ? 0 : 1;
    }
    pareto_.push_back({std::move(save), policy.bytes, policy.ms});
  }
}

std::optional<OperatorEnumeration::Policy> OperatorEnumeration::Best(
    int64_t capacity) const {
  std::optional<Policy> best;
  for (const Policy& policy : pareto_) {
    if (policy.saved_bytes <= capacity) best = policy;
  }
  return best;
}

}  // namespace acplan::problems
