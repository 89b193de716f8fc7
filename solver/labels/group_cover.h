#pragma once

#include <cstdint>
#include <vector>

#include "solver/search.h"

namespace acplan::solver {

// The knapsack inside a unit: which groups of operators to recompute, so that enough is
// discarded for the least time.
//
//   minimise   sum_g t_g z_g
//   subject to sum_g m_g z_g >= need,  z_g in {0, 1}
//
// Times are added in fixed point (a power of two, about 2^-50 of their sum), so sums of
// equal items are equal in any order. Among the best answers the result is the one that
// discards the most, and among those the one that recomputes later items rather than
// earlier ones (in lexicographic order of z). If the relaxation proves an answer best and
// more than 16,384 labels tie with it, as happens if times are proportional to bytes, that
// answer is the result.

struct CoverItem {
  int64_t bytes = 0;  // >= 0
  double ms = 0;      // >= 0
};

struct Cover {
  SearchStatus status = SearchStatus::kNoSolution;
  StoppedBy stopped_by = StoppedBy::kNothing;
  std::vector<char> take;  // indexed by item; empty if there is no answer
  int64_t bytes = 0;
  double ms = 0;
  double bound_ms = 0;  // no answer costs less
  int64_t labels = 0;   // the number of labels made
};

// Returns the exact optimum. Items whose decision a bound settles are left out; the others
// are added one at a time to labels (bytes, ms), and labels that cannot beat the best known
// answer are dropped. limits.gap is ignored; node_limit limits the number of labels, of
// which no more than 2^27 are kept at once.
Cover LeastCover(const std::vector<CoverItem>& items, int64_t need,
                 const SearchLimits& limits = {});

}  // namespace acplan::solver
