#pragma once

#include <cstdint>

#include "solver/search.h"

namespace acplan::problems {

// The time that a search for a device takes, beside that of the search for live bytes with
// which it begins. The first search has the limits of the question. Others need no proof: they
// end soon, and none of them begins once everything has taken a few times the first one's
// time. The rest of that time goes to longer searches, which meet more plans.
class DeviceEffort {
 public:
  // `patience` is that of a DeviceChoice.
  DeviceEffort(const solver::SearchLimits& limits, double patience)
      : clock_(limits), patience_(patience) {}

  bool HasEndedFirst() const { return seconds_of_first_ > 0; }
  // Says that the first search has ended.
  void EndFirst() { seconds_of_first_ = clock_.Seconds(); }
  // Says that searches are longer from now on.
  void BeginLonger() { is_longer_ = true; }
  // Says that searches have ended, and small changes of plans begin.
  void BeginChanges() { seconds_before_changes_ = clock_.Seconds(); }

  // Returns the limits of the next search. `fits`: a plan that fits is known.
  solver::SearchLimits Limits(bool fits) const;

  // Returns whether another search may begin.
  bool MayTryAnother() const;
  // Returns whether small changes of plans have time left.
  bool MayChangePlans() const;
  bool IsStopped() const;
  double Seconds() const { return clock_.Seconds(); }

 private:
  double SecondsLeftToBegin() const;

  solver::LimitClock clock_;
  double patience_;
  double seconds_of_first_ = 0;  // 0: it has not ended
  double seconds_before_changes_ = 0;
  bool is_longer_ = false;
};

}  // namespace acplan::problems
