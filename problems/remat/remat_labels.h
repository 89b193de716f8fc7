#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/decision_graph.h"
#include "problems/remat/remat_prices.h"
#include "solver/search.h"

namespace acplan::problems {

// All paths of a decision graph within its rows' room that cost less than a
// cut-off and that no other one beats.
struct RematLabelQuestion {
  const DecisionGraph& graph;
  std::vector<double> prices = {};  // by row; any will do, good ones leave few
                                    // labels
  double cut_off_ms = 0;
  int64_t labels_a_level = 0;  // beyond these, the dearest are dropped
  int64_t paths = 0;           // the most paths that are returned
};

struct RematLabelAnswer {
  std::vector<DecisionPath> paths = {};  // ms ascending
  // Every path within the rows that costs less than the cut-off costs at least
  // this or, if that is less, as much as the first of `paths`. Infinity: no
  // paths were dropped.
  double dropped_ms = 0;
  bool is_stopped = false;  // by the clock; then nothing is found or proven
  int64_t labels = 0;
};

RematLabelAnswer FindPaths(const RematLabelQuestion& question,
                           const solver::LimitClock& clock);

}  // namespace acplan::problems
