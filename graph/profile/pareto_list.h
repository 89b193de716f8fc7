#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/profile/sac_statistics.h"

namespace acplan::graph {

// The cost of a policy. All policies of a module together are its exact trade-off.
struct PolicyCost {
  int64_t saved_bytes = 0;
  double recompute_ms = 0;

  bool operator==(const PolicyCost&) const = default;
};

struct ParetoList {
  // Policies that no other one beats in both; saved_bytes ascending, recompute_ms
  // descending. The first saves the least, the last recomputes the least.
  std::vector<PolicyCost> points;
  // If false, `points` has only the corners of the list's convex hull, because the list, or
  // that of some of the groups, has more than `max_points` points.
  bool is_complete = true;
};

// Computes the list: adds one group at a time and drops the policies that another one beats
// (Nemhauser and Ullmann, 1969). Run-times are added in fixed point (a power of two, at
// most 2^-50 of their sum), so sums of equal operators are equal in any order. The groups
// must not be contradictory.
ParetoList ComputeParetoList(const OperatorGroups& groups,
                             size_t max_points = 1'000'000);

// Returns the corners of the lower convex hull of the Pareto list, without computing the
// list: the policies that recompute the groups with the most bytes for each millisecond.
// They are in the order of the list and have exactly its numbers. Takes O(n log n) for n
// groups.
std::vector<PolicyCost> ParetoHull(const OperatorGroups& groups);

}  // namespace acplan::graph
