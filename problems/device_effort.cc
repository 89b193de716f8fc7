#include "problems/device_effort.h"

#include <algorithm>

namespace acplan::problems {
namespace {

// The gap at which other searches end while no plan fits, and after that.
constexpr double kGapWithoutFit = 0.05;
constexpr double kGapOfOthers = 5e-3;
// Each of them takes at most so many parts, and so many times the first one's time or so
// long.
constexpr int64_t kPartsOfOthers = 8;
constexpr double kTimesOfEach = 2;
constexpr double kLeastSecondsOfEach = 0.25;
// None begins after so many times the first one's time, or so long.
constexpr double kTimesOfOthers = 2.3;
constexpr double kLeastSecondsOfOthers = 0.05;

}  // namespace

solver::SearchLimits DeviceEffort::Limits(bool fits) const {
  solver::SearchLimits limits = clock_.Remaining();
  // The other half is for the searches to come.
  limits.time_limit_s /= 2;
  if (seconds_of_first_ == 0) return limits;
  limits.gap =
      std::max(limits.gap, fits || is_longer_ ? kGapOfOthers : kGapWithoutFit);
  const double seconds = is_longer_ ? SecondsOfOthersLeft() / 2
                                    : std::max(kTimesOfEach * seconds_of_first_,
                                               kLeastSecondsOfEach);
  limits.time_limit_s = std::min(limits.time_limit_s, seconds);
  if (!is_longer_) limits.part_limit = kPartsOfOthers;
  return limits;
}

bool DeviceEffort::IsStopped() const {
  return clock_.Stop() != solver::StoppedBy::kNothing;
}

double DeviceEffort::SecondsOfOthersLeft() const {
  const double seconds =
      std::max(kTimesOfOthers * seconds_of_first_, kLeastSecondsOfOthers);
  return seconds_of_first_ + seconds - clock_.Seconds();
}

}  // namespace acplan::problems
