#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "solver/milp.h"
#include "solver/search.h"

namespace acplan::solver {

// The state of one call of SolveWithCbc that COIN-OR's event handlers share: whether to
// stop, and the progress to report. COIN-OR copies handlers at will, so their memory is
// here.
class CbcWatch {
 public:
  explicit CbcWatch(const SearchLimits& limits) : clock_(limits) {}

  const LimitClock& clock() const { return clock_; }
  const SearchLimits& limits() const { return clock_.limits(); }

  // Returns the reason to stop now, or kNothing. Once it has returned a reason, it keeps to
  // it, even if the flag of an interrupt is reset.
  StoppedBy Poll() {
    if (stop_ == StoppedBy::kNothing) stop_ = clock_.Stop();
    return stop_;
  }
  bool ShouldStop() { return Poll() != StoppedBy::kNothing; }

  void SawSolution(double objective) { best_ = std::min(best_, objective); }
  void SawBound(double bound) { bound_ = std::max(bound_, bound); }
  void SawNodes(int64_t nodes) { nodes_ = std::max(nodes_, nodes); }
  double best() const { return best_; }

  // Reports the progress so far, unless the last report was a moment before; with `now` in
  // any case. Never throws: COIN-OR's frames are between here and any handler.
  void Report(bool now);

  // Throws the exception that the report threw, if any.
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
