#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "costmodel/training/plans/policy_choice.h"
#include "costmodel/training/settings/strategy_space.h"

namespace acplan::costmodel {

struct RankedStrategy {
  TrainingStrategy strategy = {};
  double seconds = 0;
  double bytes = 0;  // of the stage that holds most
  double bound = 0;  // seconds that no plan of this strategy goes below
  std::vector<PolicyChoice> choices = {};  // of a plan's stages
};

struct StrategySearch {
  std::vector<RankedStrategy> best = {};  // the fastest first, ties by memory
  int64_t strategies = 0;  // that are legal, each number of layers one
  int64_t evaluated = 0;   // of these; the others are decided by monotonicity
  // Of those evaluated; of plans, of those that their time alone does not rule out.
  int64_t fitting = 0;
  int64_t planned = 0;  // of those: a bound did not decide that they are slower
  int64_t unplanned = 0;  // that a bound did not decide when planning ended
  // Plans made that may not be the best of their strategy, where that could be among
  // the best.
  int64_t improvable = 0;
  bool is_complete = true;  // else a limit came before all were tried
  bool is_proven = true;    // complete, and nothing is unplanned or improvable
  // Seconds that what is untried, unplanned or improvable does not go below.
  double open_bound = std::numeric_limits<double>::infinity();
  double core_seconds = 0;

  // A limit came: nothing is known of the others.
  void LeaveUntried() {
    is_complete = is_proven = false;
    open_bound = 0;
  }

  // Seconds that no strategy that fits goes below; infinite where none does.
  double Bound() const {
    return best.empty() ? open_bound : std::min(open_bound, best[0].seconds);
  }
};

// When a search ends, with the best so far. A plan that is begun ends with the best
// choice so far.
struct StrategySearchLimits {
  double seconds = std::numeric_limits<double>::infinity();
  const std::atomic<bool>* interrupted = nullptr;  // by a signal, say
};

// The limits of a search from when it began, which is when this was made.
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

// The `count` fastest strategies of the space whose stages all fit `budget` bytes:
// exact, every legal strategy is computed or proven slower than all that are there.
// `job` says all that the space does not. Of strategies that differ in the number
// of recomputed layers alone, the fastest counts; a plan that recomputes nothing is
// not listed beside the same strategy without recomputation. Uses all cores; the answer does
// not depend on how many, unless a limit ends it.
StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space, double budget,
                                size_t count,
                                const StrategySearchLimits& limits = {});

}  // namespace acplan::costmodel
