#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problems/remat/decision_graph.h"

namespace acplan::problems {

// Paths of a decision graph at prices of a byte at its rows.

// A number for each state of each level, for the paths from there to the end.
using LevelValues = std::vector<std::vector<double>>;
using LevelBytes = std::vector<std::vector<int64_t>>;

// Returns the cheapest rest of a path from each state, ms and bytes at the
// rows' prices. Infinity: there is none.
LevelValues CheapestRests(const DecisionGraph& graph,
                          std::span<const double> prices);
// Returns the least bytes at a row of the rest of a path from each state;
// MostRests returns the most.
LevelBytes LeastRests(const DecisionGraph& graph, size_t row);
LevelBytes MostRests(const DecisionGraph& graph, size_t row);

// An edge of each level, in order; empty: there is no path.
using DecisionPath = std::vector<int32_t>;
// Returns the path with the cheapest rest from the beginning.
DecisionPath CheapestPath(const DecisionGraph& graph,
                          std::span<const double> prices,
                          const LevelValues& rests);

// Returns the decisions of a path: by buffer, 1 if it is kept.
std::vector<char> KeptOn(const RematProblem& problem,
                         const DecisionGraph& graph, const DecisionPath& path);

struct PathSums {
  double ms = 0;
  std::vector<int64_t> bytes = {};  // by row
};
PathSums SumsOf(const DecisionGraph& graph, const DecisionPath& path);

}  // namespace acplan::problems
