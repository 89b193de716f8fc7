#pragma once

#include <array>
#include <span>
#include <vector>

#include "costmodel/planning/block_operators.h"

namespace acplan::costmodel {

// The cost of running again, by each of up to three measures; 0 by others.
using PolicyCosts = std::array<double, 3>;

// A choice of what a block keeps of a microbatch.
struct BlockPolicy {
  KeptTensors kept = 0;
  double bytes = 0;
  PolicyCosts costs = {};  // of what runs again
};

// Data: an operator o that runs again costs c_k(o) by measure k; a tensor x takes
//   b(x) bytes.
// Variables: keep(x), runs(o) in {0, 1}.
// Subject to: runs(o) where o makes a required tensor that is not kept, and
//   where an operator that runs again reads an output of o that is not kept.
// All policies that no other beats in bytes and costs
//   sum b(x) keep(x),  sum c_k(o) runs(o),
// by ascending bytes. `costs`: one an operator.
// Walks the operators from the last to the first with labels (what earlier
// operators must make, bytes, cost), of which those that another beats go.
std::vector<BlockPolicy> FindPolicies(const BlockOperators& block,
                                      std::span<const PolicyCosts> costs);

}  // namespace acplan::costmodel
