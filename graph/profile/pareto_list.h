#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/profile/sac_statistics.h"

namespace acplan::graph {

// The exact trade-off of a module: what its policies save and recompute.
struct PolicyCost {
  int64_t saved_bytes = 0;
  double recompute_ms = 0;

  bool operator==(const PolicyCost&) const = default;
};

struct ParetoList {
  // Policies that no other beats in both; saved_bytes ascending, recompute_ms
  // descending. The first saves the least, the last recomputes the least.
  std::vector<PolicyCost> points;
  // Whether the list is whole; else `points` has the corners of its convex hull
  // alone, since it, or that of some of the groups, has more than `max_points`
  // points.
  bool is_complete = true;
};

// By adding one group after the other and dropping what is beaten
// (Nemhauser and Ullmann, 1969). Run-times are added in fixed point (a power of
// two, at most 2^-50 of their sum), so sums of equal operators are equal in any
// order. The groups must not be contradictory.
ParetoList ComputeParetoList(const OperatorGroups& groups,
                             size_t max_points = 1'000'000);

// The corners of the lower convex hull of the Pareto list, without computing
// the list: the policies that recompute the groups with the most bytes a
// millisecond. In the order of the list and with its very numbers;
// O(n log n) for n groups.
std::vector<PolicyCost> ParetoHull(const OperatorGroups& groups);

}  // namespace acplan::graph
