#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problems/remat/decision_graph.h"

namespace acplan::problems {

// Paths of a decision graph at prices of a byte at its rows.

// A number a state of each level, from which on paths go to the end.
using LevelValues = std::vector<std::vector<double>>;
using LevelBytes = std::vector<std::vector<int64_t>>;

// The cheapest rest of a path from each state, ms and bytes at the rows' prices. Infinity:
// there is none.
LevelValues CheapestRests(const DecisionGraph& graph,
                          std::span<const double> prices);
// The least and the most bytes at a row of the rest of a path from each state.
LevelBytes LeastRests(const DecisionGraph& graph, size_t row);
LevelBytes MostRests(const DecisionGraph& graph, size_t row);

// An edge of each level, in order; empty: there is no path.
using DecisionPath = std::vector<int32_t>;
// The one with the cheapest rest from the beginning.
DecisionPath CheapestPath(const DecisionGraph& graph,
                          std::span<const double> prices,
                          const LevelValues& rests);

// What a path decides: a buffer, 1 where it is kept.
std::vector<char> KeptOn(const RematProblem& problem,
                         const DecisionGraph& graph, const DecisionPath& path);

struct PathSums {
  double ms = 0;
  std::vector<int64_t> bytes = {};  // a row
};
PathSums SumsOf(const DecisionGraph& graph, const DecisionPath& path);

}  // namespace acplan::problems
