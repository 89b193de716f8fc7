#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace acplan::costmodel {

// A way to run a block.
struct BlockChoice {
  double bytes = 0;
  double cost = 0;
};

struct StageChoice {
  bool is_feasible = false;
  std::vector<int64_t> counts;  // blocks of each choice
  double cost = 0;
  double bound = 0;  // no counts cost less
};

struct StageChoiceOptions {
  int64_t most_nodes = 5'000;  // of the enumeration
  double most_work = 3e8;      // additions of the dynamic program
  // A choice that costs as much or more need not be the best.
  double cutoff = std::numeric_limits<double>::infinity();
};

// Data: n blocks; choices j with bytes b_j and cost c_j; f microbatches in
//   flight; a capacity.
// Variables: n_j blocks of choice j, integers >= 0 that add up to n.
// Minimise sum c_j n_j subject to f sum b_j n_j - max{b_j : n_j > 0} <=
//   capacity, as the block that goes back first holds its activations
//   elsewhere.
// For each choice as the largest, the linear relaxation is two neighbours on
// the lower hull; what deviates from them costs its distance from the hull,
// which bounds the enumeration. Where that takes too many nodes, and bytes are
// multiples of a unit that is not too small, a dynamic program over blocks and
// units is exact, too; else `bound` is less than `cost`.
// `choices` ascend in bytes and descend in cost.
StageChoice ChooseForBlocks(std::span<const BlockChoice> choices,
                            int64_t blocks, double in_flight, double capacity,
                            const StageChoiceOptions& options = {});

}  // namespace acplan::costmodel
