#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/decision_graph.h"
#include "problems/remat/remat_prices.h"
#include "solver/search.h"

namespace acplan::problems {

// All paths of a decision graph within its rows' room that cost less than some ms and
// that no other one beats.
struct RematLabelQuestion {
  const DecisionGraph& graph;
  std::vector<double> prices = {};  // a row; any, good ones leave few labels
  double cut_off_ms = 0;
  int64_t labels_a_level = 0;  // more than these are dropped, the dearest first
  int64_t paths = 0;           // at most so many are returned
};

struct RematLabelAnswer {
  std::vector<DecisionPath> paths = {};  // ms ascending
  // Every path within the rows that costs less than the cut-off costs at least this, or
  // as much as the first of `paths`, if that is less. Infinity: no others were dropped.
  double dropped_ms = 0;
  bool is_stopped = false;  // by the clock; nothing is found or proven
  int64_t labels = 0;
};

RematLabelAnswer FindPaths(const RematLabelQuestion& question,
                           const solver::LimitClock& clock);

}  // namespace acplan::problems
