#pragma once

#include <cstdint>

#include "solver/search.h"

namespace acplan::problems {

// The time that a search for a device takes, beside that of a search for live bytes. The
// first search has the limits of the question. Others need no proof: they end soon, and none of
// them begins once they have taken a few times the first one's time. The rest of that
// time goes to longer searches, which meet more plans.
class DeviceEffort {
 public:
  explicit DeviceEffort(const solver::SearchLimits& limits) : clock_(limits) {}

  // Says that the first search has ended.
  void EndFirst() { seconds_of_first_ = clock_.Seconds(); }
  // Says that searches are longer from now on.
  void BeginLonger() { is_longer_ = true; }

  // Returns the limits of the next search. `fits`: a plan that fits is known.
  solver::SearchLimits Limits(bool fits) const;

  bool MayTryAnother() const {
    return SecondsOfOthersLeft() > 0 && !IsStopped();
  }
  bool IsStopped() const;
  double Seconds() const { return clock_.Seconds(); }

 private:
  double SecondsOfOthersLeft() const;

  solver::LimitClock clock_;
  double seconds_of_first_ = 0;  // 0: it has not ended
  bool is_longer_ = false;
};

}  // namespace acplan::problems
