#include "problems/remat/remat_prices.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

#include "solver/infinity.h"

namespace acplan::problems {

using solver::kInfinity;

namespace {

using Edge = DecisionGraph::Edge;
using Level = DecisionGraph::Level;

constexpr int64_t kNoPath = std::numeric_limits<int64_t>::max();

// Returns the cost of each effect of a level.
std::vector<double> PriceEffects(const Level& level,
                                 std::span<const double> prices) {
  if (prices.empty()) return std::vector<double>(level.effects.size() + 1, 0);
  std::vector<double> costs(level.effects.size() / prices.size(), 0);
  for (size_t e = 0; e < costs.size(); ++e)
    for (size_t row = 0; row < prices.size(); ++row)
      costs[e] += prices[row] *
                  static_cast<double>(level.effects[e * prices.size() + row]);
  return costs;
}

// Returns the bytes of rests at a row: for each state those that are better
// than all others by `is_better`.
template <typename IsBetter>
LevelBytes BytesOfRests(const DecisionGraph& graph, size_t row,
                        IsBetter is_better) {
  LevelBytes rests(graph.levels.size() + 1);
  rests.back().assign(static_cast<size_t>(graph.last_states), 0);
  for (size_t l = graph.levels.size(); l-- > 0;) {
    const Level& level = graph.levels[l];
    std::vector<int64_t>& mine = rests[l];
    mine.assign(static_cast<size_t>(level.states), kNoPath);
    for (const Edge& edge : level.edges) {
      const int64_t rest = rests[l + 1][edge.to];
      if (rest == kNoPath) continue;
      const int64_t bytes = graph.EffectOf(level, edge)[row] + rest;
      if (mine[edge.from] == kNoPath || is_better(bytes, mine[edge.from]))
        mine[edge.from] = bytes;
    }
  }
  return rests;
}

}  // namespace

LevelValues CheapestRests(const DecisionGraph& graph,
                          std::span<const double> prices) {
  LevelValues rests(graph.levels.size() + 1);
  rests.back().assign(static_cast<size_t>(graph.last_states), 0);
  for (size_t l = graph.levels.size(); l-- > 0;) {
    const Level& level = graph.levels[l];
    const std::vector<double> costs = PriceEffects(level, prices);
    std::vector<double>& mine = rests[l];
    mine.assign(static_cast<size_t>(level.states), kInfinity);
    for (const Edge& edge : level.edges) {
      const double cost = edge.ms + costs[edge.effect] + rests[l + 1][edge.to];
      mine[edge.from] = std::min(mine[edge.from], cost);
    }
  }
  return rests;
}

LevelBytes LeastRests(const DecisionGraph& graph, size_t row) {
  return BytesOfRests(graph, row, std::less<int64_t>());
}

LevelBytes MostRests(const DecisionGraph& graph, size_t row) {
  return BytesOfRests(graph, row, std::greater<int64_t>());
}

DecisionPath CheapestPath(const DecisionGraph& graph,
                          std::span<const double> prices,
                          const LevelValues& rests) {
  DecisionPath path;
  int32_t state = 0;
  for (size_t l = 0; l < graph.levels.size(); ++l) {
    const Level& level = graph.levels[l];
    const std::vector<double> costs = PriceEffects(level, prices);
    const auto begin =
        std::ranges::lower_bound(level.edges, state, {}, &Edge::from);
    int32_t best = -1;
    double least = kInfinity;
    for (auto edge = begin; edge != level.edges.end() && edge->from == state;
         ++edge) {
      const double cost =
          edge->ms + costs[edge->effect] + rests[l + 1][edge->to];
      if (cost >= least) continue;
      least = cost;
      best = static_cast<int32_t>(edge - level.edges.begin());
    }
    if (best < 0) return {};
    path.push_back(best);
    state = level.edges[best].to;
  }
  return path;
}

std::vector<char> KeptOn(const RematProblem& problem,
                         const DecisionGraph& graph, const DecisionPath& path) {
  std::vector<char> is_kept(problem.value_of.size(), 0);
  for (size_t l = 0; l < path.size(); ++l) {
    const Level& level = graph.levels[l];
    for (const int32_t o : level.ops) {
      for (const int32_t v : problem.operators[o].makes) {
        const RematValue& value = problem.values[v];
        if (level.edges[path[l]].kept_bits & value.Bit())
          is_kept[value.buffer] = 1;
      }
    }
  }
  return is_kept;
}

PathSums SumsOf(const DecisionGraph& graph, const DecisionPath& path) {
  PathSums sums{.bytes = std::vector<int64_t>(graph.rows.size(), 0)};
  for (size_t l = 0; l < path.size(); ++l) {
    const Level& level = graph.levels[l];
    const Edge& edge = level.edges[path[l]];
    sums.ms += edge.ms;
    const int64_t* effect = graph.EffectOf(level, edge);
    for (size_t row = 0; row < sums.bytes.size(); ++row)
      sums.bytes[row] += effect[row];
  }
  return sums;
}

}  // namespace acplan::problems
