#include "problems/device_effort.h"

#include <algorithm>

namespace acplan::problems {
namespace {

// The gap at which other searches end while no plan fits, and after that.
constexpr double kGapWithoutFit = 0.05;
constexpr double kGapOfOthers = 5e-3;
// Each of them takes at most so many parts.
constexpr int64_t kPartsOfOthers = 8;

// A multiple of the first search's time, and a time that nobody waits for.
struct TimeShare {
  double times = 0;
  double more_seconds = 0;

  double SecondsFor(double seconds_of_first) const {
    return times * seconds_of_first + more_seconds;
  }
};

// Since the question was asked: no search begins after the one, and all end at the other.
constexpr TimeShare kLastBegin = {.times = 2.2, .more_seconds = 0.11};
constexpr TimeShare kLastEnd = {.times = 2.8, .more_seconds = 0.15};
// Small changes of plans, since they began.
constexpr TimeShare kChanges = {.times = 2, .more_seconds = 0.02};

}  // namespace

solver::SearchLimits DeviceEffort::Limits(bool fits) const {
  solver::SearchLimits limits = clock_.Remaining();
  // The other half is for the searches to come.
  limits.time_limit_s /= 2;
  if (!HasEndedFirst()) return limits;
  limits.gap =
      std::max(limits.gap, fits || is_longer_ ? kGapOfOthers : kGapWithoutFit);
  const double seconds =
      is_longer_ ? SecondsLeftToBegin() / 2
                 : patience_ * kLastEnd.SecondsFor(seconds_of_first_) -
                       clock_.Seconds();
  limits.time_limit_s = std::min(limits.time_limit_s, seconds);
  if (!is_longer_) limits.part_limit = kPartsOfOthers;
  return limits;
}

bool DeviceEffort::MayTryAnother() const {
  return SecondsLeftToBegin() > 0 && !IsStopped();
}

bool DeviceEffort::MayChangePlans() const {
  return clock_.Seconds() <
             seconds_before_changes_ +
                 patience_ * kChanges.SecondsFor(seconds_of_first_) &&
         !IsStopped();
}

bool DeviceEffort::IsStopped() const {
  return clock_.Stop() != solver::StoppedBy::kNothing;
}

double DeviceEffort::SecondsLeftToBegin() const {
  return patience_ * kLastBegin.SecondsFor(seconds_of_first_) -
         clock_.Seconds();
}

}  // namespace acplan::problems
