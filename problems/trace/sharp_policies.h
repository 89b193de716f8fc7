#pragma once

#include <limits>
#include <memory>

#include "problems/trace/need_graph.h"
#include "problems/trace/need_policies.h"

namespace acplan::problems {

// Policies of a call that has too many for an exact list, exact where it matters.

// At a price of a byte that is kept, ms a byte, a policy's reduced cost is what it
// costs beyond the cheapest policy, bytes included.
struct PriceBand {
  double price = 0;
  double most_ms = 0;  // the reduced costs that matter
};

// The policies of `coarse`, which are those of the graph with these choices, relaxed
// where they stand for others; but those in the band are exact, all that no other one
// beats, and the others cost no less than what lies beyond it. The band is narrower
// than asked for where it has too many policies, and `coarse` is returned as it is
// where that does not help.
std::shared_ptr<const NeedPolicies> SharpPolicies(
    const NeedGraph& graph, const NeedChoices& choices,
    std::shared_ptr<const NeedPolicies> coarse, const PriceBand& band);

}  // namespace acplan::problems
