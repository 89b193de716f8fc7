#pragma once

#include <span>
#include <vector>

#include "costmodel/planning/block_operators.h"

namespace acplan::costmodel {

// What a block keeps of a microbatch.
struct BlockPolicy {
  KeptTensors kept = 0;
  double bytes = 0;
  double cost = 0;         // of what runs again
  double second_cost = 0;  // likewise
};

// Data: an operator o that runs again costs c(o); a tensor x takes b(x) bytes.
// Variables: keep(x), runs(o) in {0, 1}.
// Subject to: runs(o) where o makes a required tensor that is not kept, and
//   where an operator that runs again reads an output of o that is not kept.
// All policies that no other beats in bytes and costs
//   sum b(x) keep(x),  sum c(o) runs(o),  sum d(o) runs(o),
// by ascending bytes. `costs`, `second_costs`: one an operator; without the
// latter they are 0.
// Walks the operators from the last to the first with labels (what earlier
// operators must make, bytes, cost), of which those that another beats go.
std::vector<BlockPolicy> FindPolicies(
    const BlockOperators& block, std::span<const double> costs,
    std::span<const double> second_costs = {});

}  // namespace acplan::costmodel
