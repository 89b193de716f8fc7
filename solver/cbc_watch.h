#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "solver/milp.h"
#include "solver/search.h"

namespace acplan::solver {

// One call of SolveWithCbc as COIN-OR's event handlers see it: whether to stop,
// and what to report. COIN-OR copies handlers as it likes, so what they have to
// remember is here.
class CbcWatch {
 public:
  explicit CbcWatch(const SearchLimits& limits) : clock_(limits) {}

  const LimitClock& clock() const { return clock_; }
  const SearchLimits& limits() const { return clock_.limits(); }

  // Says whether to stop now, and why. An interrupt stays one even if its flag
  // is taken back.
  StoppedBy Poll() {
    if (stop_ == StoppedBy::kNothing) stop_ = clock_.Stop();
    return stop_;
  }
  bool ShouldStop() { return Poll() != StoppedBy::kNothing; }

  void SawSolution(double objective) { best_ = std::min(best_, objective); }
  void SawBound(double bound) { bound_ = std::max(bound_, bound); }
  void SawNodes(int64_t nodes) { nodes_ = std::max(nodes_, nodes); }
  double best() const { return best_; }

  // Reports what was seen, unless it did so a moment before; with `now` in any
  // case. Never throws: there are COIN-OR's frames between here and whoever
  // could catch.
  void Report(bool now);

  // Throws what the report threw.
  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  LimitClock clock_;
  StoppedBy stop_ = StoppedBy::kNothing;
  double best_ = kInfinity;
  double bound_ = -kInfinity;
  int64_t nodes_ = 0;
  double last_report_ = -kInfinity;
  std::exception_ptr error_;
};

}  // namespace acplan::solver
