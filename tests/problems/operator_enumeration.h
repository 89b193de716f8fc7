#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::problems {

// An oracle: every policy of a module with few operators that keeps the rules
// of tests/support/operator_rules.h. It uses neither groups nor bounds.
class OperatorEnumeration {
 public:
  struct Policy {
    std::vector<char> save;  // by operator
    int64_t saved_bytes = 0;
    double recompute_ms = 0;
  };

  // Enumerates all policies of up to about 20 free operators.
  explicit OperatorEnumeration(const graph::SacStatistics& sac,
                               const graph::OperatorPatterns& patterns = {});

  // Returns the policies that no other beats in both, saved bytes ascending and
  // recomputed milliseconds descending; among equal ones, the first in the
  // order of operators, a saved operator before a recomputed one. Milliseconds
  // are compared as double sums in the order of operators, which are exact for
  // multiples of 1/16. Empty if the rules contradict each other.
  const std::vector<Policy>& Pareto() const { return pareto_; }

  // Returns the policy with the least recomputation within a capacity, among
  // those the one that saves the fewest bytes, and among these the first;
  // nullopt if none fits.
  std::optional<Policy> Best(int64_t capacity) const;

 private:
  std::vector<Policy> pareto_;
};

}  // namespace acplan::problems
