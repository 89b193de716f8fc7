#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "costmodel/training/confidence/intervals.h"
#include "costmodel/training/memory/memory_limit.h"
#include "costmodel/training/plans/policy_choice.h"
#include "costmodel/training/settings/strategy_space.h"

namespace acplan::costmodel {

struct RankedStrategy {
  TrainingStrategy strategy = {};
  double rank = 0;  // by which it is compared: its seconds, or its worst case
  double seconds = 0;
  double bytes = 0;  // of the stage with the highest peak
  double bound = 0;  // no plan of this strategy takes fewer seconds
  std::vector<PolicyChoice> choices = {};  // the choices of a plan's stages
};

struct StrategySearch {
  // The strategies of the lowest rank, in its order, ties by memory.
  std::vector<RankedStrategy> best = {};
  // The fastest strategy within measured territory, if the errors of measured runs are
  // known. Plans only count if they are among `best`.
  std::optional<RankedStrategy> measured = {};
  // The legal strategies, with each number of layers as one.
  int64_t strategies = 0;
  // The evaluated strategies; the others are decided by monotonicity.
  int64_t evaluated = 0;
  // The evaluated strategies that fit; plans only count if their time alone does not rule
  // them out.
  int64_t fitting = 0;
  // The plans made, for strategies that no bound showed to be slower.
  int64_t plan_count = 0;
  // The strategies that no bound had ruled out when planning ended.
  int64_t unplanned = 0;
  // Plans that may not be the best of their strategy, if a better one could be among the
  // best.
  int64_t improvable = 0;
  // False if a limit ended the search before all were tried.
  bool is_complete = true;
  bool is_proven = true;  // complete, and nothing is unplanned or improvable
  // No strategy that is untried, unplanned or improvable takes fewer seconds.
  double open_bound = std::numeric_limits<double>::infinity();
  double core_seconds = 0;

  // Records that a limit ended the search: nothing is known of the remaining strategies.
  void LeaveUntried() {
    is_complete = is_proven = false;
    open_bound = 0;
  }

  // Returns seconds that no strategy that fits is below; infinity if there is none.
  double Bound() const {
    return best.empty() ? open_bound : std::min(open_bound, best[0].rank);
  }
};

// The strategies that a search is to find.
struct SearchGoal {
  size_t count = 10;
  // The errors of measured runs; null if they are unknown.
  const IntervalModel* intervals = nullptr;
  // If true, strategies rank by their worst case, the end of the interval. It needs
  // intervals.
  bool is_robust = false;
};

// The limits at which a search ends with the best strategies so far. A plan in progress
// ends with the best choice so far.
struct StrategySearchLimits {
  double seconds = std::numeric_limits<double>::infinity();
  // Set by a signal, for example.
  const std::atomic<bool>* interrupted = nullptr;
};

// The limits of a search that begins when the clock is constructed.
class StrategySearchClock {
 public:
  explicit StrategySearchClock(const StrategySearchLimits& limits)
      : limits_(limits) {}

  bool HasEnded() const {
    const std::chrono::duration<double> spent =
        std::chrono::steady_clock::now() - start_;
    return spent.count() >= limits_.seconds ||
           (limits_.interrupted && limits_.interrupted->load());
  }

 private:
  StrategySearchLimits limits_;
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

// Returns the kind of a strategy that a search found, with the parts of its time. The
// parts of a plan are those without recomputation.
RunKind KindOfRanked(const TrainingJob& job, const RankedStrategy& ranked);

// Finds the fastest strategies of the space whose stages all fit the limit, which may leave
// PyTorch more or less with each strategy (PyTorchBytes).
// The answer is exact: every legal strategy is computed or proven slower than all in the
// answer. `job` gives everything that the space does not. Among strategies that differ only
// in the number of recomputed layers, the fastest counts. A plan that recomputes nothing is
// not listed beside the same strategy without recomputation. Uses all cores; the answer
// does not depend on their number, unless a limit ends the search. If worst cases count,
// plans are those of the fastest strategies, and the answer is exact for all others.
StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space,
                                const MemoryLimit& limit,
                                const SearchGoal& goal,
                                const StrategySearchLimits& limits = {});

}  // namespace acplan::costmodel
