#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

namespace acplan::solver {

// The progress that a search reports while it runs. A search minimises, so best >= bound.
struct SearchProgress {
  double best = std::numeric_limits<double>::infinity();    // incumbent
  double bound = -std::numeric_limits<double>::infinity();  // proven
  int64_t nodes = 0;
  double seconds = 0;
};

// The limits of a search, and its connections to its caller.
struct SearchLimits {
  double time_limit_s = std::numeric_limits<double>::infinity();
  // Stop once best - bound <= gap * |best|.
  double gap = 0;
  // Labels only: a solution that costs as much or more is of no interest. If no solution
  // costs less, there is no solution, and the bound is the cut-off.
  double cut_off = std::numeric_limits<double>::infinity();
  int64_t node_limit = std::numeric_limits<int64_t>::max();
  // Parts of the plans of a trace that are looked into, after the first plan was found.
  int64_t part_limit = std::numeric_limits<int64_t>::max();
  int seed = 1;
  // Set by a signal handler or another thread to stop the search in an orderly way.
  const std::atomic<bool>* interrupted = nullptr;
  // Called now and then by the searching thread.
  std::function<void(const SearchProgress&)> on_progress = {};
};

enum class SearchStatus {
  kOptimal,  // proven, within 1e-9 of the objective for labels and 1e-6 for cbc
  kFeasible,    // a solution, stopped before the proof
  kInfeasible,  // proven to have none
  kNoSolution,  // a limit was hit before a solution was found
};

// The reason why a search stopped. kMemory: the search's own limit on its memory.
// kUnproven: the search ended without a proof.
enum class StoppedBy {
  kNothing,
  kTime,
  kGap,
  kNodes,
  kMemory,
  kUnproven,
  kInterrupt
};

// A clock that starts when it is constructed.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

// Returns the remaining limits after some time and nodes.
inline SearchLimits LeftOf(SearchLimits limits, double seconds,
                           int64_t nodes = 0) {
  limits.time_limit_s = std::max(0.0, limits.time_limit_s - seconds);
  limits.node_limit = std::max<int64_t>(0, limits.node_limit - nodes);
  return limits;
}

// The limits of a search that begins when the clock is constructed.
class LimitClock {
 public:
  explicit LimitClock(SearchLimits limits) : limits_(std::move(limits)) {}

  const SearchLimits& limits() const { return limits_; }
  double Seconds() const { return stopwatch_.Seconds(); }
  double SecondsLeft() const {
    return std::max(0.0, limits_.time_limit_s - Seconds());
  }

  // Returns the limits of a search that is a part of this one: with the remaining time.
  SearchLimits Remaining() const { return LeftOf(limits_, Seconds()); }

  // Returns the reason to stop now: kInterrupt, kTime or kNothing.
  StoppedBy Stop() const {
    if (limits_.interrupted != nullptr &&
        limits_.interrupted->load(std::memory_order_relaxed)) {
      return StoppedBy::kInterrupt;
    }
    return Seconds() >= limits_.time_limit_s ? StoppedBy::kTime
                                             : StoppedBy::kNothing;
  }

 private:
  SearchLimits limits_;
  Stopwatch stopwatch_;
};

}  // namespace acplan::solver
