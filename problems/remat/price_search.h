#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "problems/remat/decision_graph.h"
#include "problems/remat/remat_prices.h"

namespace acplan::problems {

// The prices of a byte at the rows of a decision graph that prove most. With
// prices in place of the room, the cheapest path, less the price of the room,
// is a bound on all paths within the room. At the best prices the bound is the
// optimum of the mixtures of paths that keep the room on average.

struct PriceQuestion {
  const DecisionGraph& graph;
  int64_t scale_bytes = 0;  // of room, the unit of prices in the program
  double all_ms = 0;        // no path costs more
  // Called with each new path.
  std::function<void(const DecisionPath&)> on_path;
  // Called with each higher bound, ms. Returns whether to stop.
  std::function<bool(double)> on_bound;
  // Returns whether to stop; called from time to time.
  std::function<bool()> is_stopped;
};

struct PriceAnswer {
  std::vector<double> prices = {};  // by row
  // The paths in the best mixture, numbered in the order of on_path.
  std::vector<int64_t> mixture = {};
  int64_t cuts = 0;
  bool is_stopped = false;
};

PriceAnswer FindPrices(const PriceQuestion& question);

}  // namespace acplan::problems
