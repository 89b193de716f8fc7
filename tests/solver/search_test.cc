#include "solver/search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace acplan::solver {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LimitClock, StopsForNothingWithoutLimits) {
  const LimitClock clock(SearchLimits{});
  EXPECT_EQ(clock.Stop(), StoppedBy::kNothing);
  EXPECT_EQ(clock.SecondsLeft(), kInfinity);
  EXPECT_EQ(clock.Remaining().time_limit_s, kInfinity);
}

TEST(LimitClock, LeavesNoNegativeTime) {
  const LimitClock clock({.time_limit_s = -1, .gap = 0.25, .seed = 7});
  EXPECT_EQ(clock.Stop(), StoppedBy::kTime);
  EXPECT_EQ(clock.SecondsLeft(), 0);
  const SearchLimits remaining_limits = clock.Remaining();
  EXPECT_EQ(remaining_limits.time_limit_s, 0);
  EXPECT_EQ(remaining_limits.gap, 0.25);
  EXPECT_EQ(remaining_limits.seed, 7);
}

TEST(LimitClock, CountsFromWhenItWasMade) {
  const LimitClock clock({.time_limit_s = 3600});
  const double first = clock.SecondsLeft();
  EXPECT_LE(first, 3600);
  EXPECT_LE(clock.SecondsLeft(), first);
  EXPECT_EQ(clock.Stop(), StoppedBy::kNothing);
}

TEST(LimitClock, AnInterruptComesBeforeTheTime) {
  std::atomic<bool> interrupted = false;
  const LimitClock clock({.time_limit_s = 0, .interrupted = &interrupted});
  EXPECT_EQ(clock.Stop(), StoppedBy::kTime);
  interrupted = true;
  EXPECT_EQ(clock.Stop(), StoppedBy::kInterrupt);
}

TEST(LeftOf, IsNeverNegative) {
  SearchLimits limits;
  EXPECT_TRUE(std::isinf(LeftOf(limits, 5).time_limit_s));
  limits = {.time_limit_s = 4, .node_limit = 10, .seed = 7};
  const SearchLimits none = LeftOf(limits, 5, 11);
  EXPECT_EQ(none.time_limit_s, 0);
  EXPECT_EQ(none.node_limit, 0);
  EXPECT_EQ(none.seed, 7);
  const SearchLimits some = LeftOf(limits, 1, 4);
  EXPECT_EQ(some.time_limit_s, 3);
  EXPECT_EQ(some.node_limit, 6);
}

}  // namespace
}  // namespace acplan::solver
