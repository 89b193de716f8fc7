#pragma once

#include <cstdint>
#include <memory>

#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/need_policies.h"

namespace acplan::problems {

// Policies of a call that has too many for an exact list, exact where it matters.

// The policies that discard at least so much and cost at most so much.
struct PolicyWindow {
  int64_t least_discarded = 0;
  double most_ms = 0;
  // The supposed cost of a byte, ms: policies that are beyond one of the limits
  // by little and on the other side by more at this price are in the window too.
  double price = 0;
};

// Returns the policies of `coarse`, which are those of the graph with these choices,
// relaxed where they stand for others; but those in the window are exact, all that no
// other one beats, and the others cost no less than they may. The window is narrower
// than asked for where it has too many policies.
std::shared_ptr<const NeedPolicies> SharpPolicies(
    const NeedGraph& graph, const NeedChoices& choices,
    std::shared_ptr<const NeedPolicies> coarse, const PolicyWindow& window);

}  // namespace acplan::problems
