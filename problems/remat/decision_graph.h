#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/need_clock.h"
#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// All ways to decide about values, from the last operator to the first, as
// paths in a graph of states, with the bytes that they take at some moments
// (rows).
//
// A state before an operator says which of the values that this operator and
// earlier ones make later operators need to run again, and when: before which
// of the rows' backward nodes first, and until which row. The needs of backward
// itself are the same for all and no part of a state. In a block of a model
// that is a handful of values.

struct DecisionGraph {
  struct Edge {
    int32_t from = 0;  // state
    int32_t to = 0;    // state of the next level
    int32_t effect = -1;
    double ms = 0;
    uint64_t kept_bits =
        0;  // RematValue::Bit of the kept values of each operator
  };
  struct Level {
    std::vector<int32_t> ops = {};  // decided as one
    int32_t states = 0;             // before their decision
    std::vector<Edge> edges = {};   // sorted by `from`
    // Indexed by effect, then row: bytes at the rows, effect by effect.
    std::vector<int64_t> effects = {};
  };

  std::vector<RematMoment> rows = {};
  // The bytes that decisions may add to a row within the budget.
  std::vector<int64_t> room = {};
  std::vector<Level> levels = {};
  int32_t last_states = 0;  // after the last level
  // Some states stand for several states and need all that these do.
  bool is_relaxed = false;
  // Not all choices are paths: an operator makes too many values.
  bool is_restricted = false;

  const int64_t* EffectOf(const Level& level, const Edge& edge) const {
    return level.effects.data() +
           static_cast<size_t>(edge.effect) * rows.size();
  }
};

struct DecisionLimits {
  int64_t states = 3000;  // for each level
  // Only paths that meet these; then the rows of moments that are met need no
  // other room.
  std::vector<RematCondition> conditions = {};
};

// Builds the graph. Every choice of kept values that no rule forbids is a path,
// with its ms, and with at most its bytes at each row (exactly these, unless
// relaxed). `rows` may have any order; those of the result are sorted. If there
// is no path, a level has no edges.
DecisionGraph BuildDecisionGraph(const RematProblem& problem,
                                 std::vector<RematMoment> rows,
                                 const RematBudget& budget,
                                 const DecisionLimits& limits = {});

}  // namespace acplan::problems
