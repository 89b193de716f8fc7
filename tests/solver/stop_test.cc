#include "solver/stop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

namespace acplan::solver {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

TEST(Stop, IsNeverDueOutsideOfScopes) { EXPECT_NO_THROW(StopIfDue()); }

TEST(Stop, IsDueWhenTheTimeHasCome) {
  const StopScope scope(.02, nullptr);
  EXPECT_NO_THROW(StopIfDue());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(scope.IsDue());
  EXPECT_THROW(StopIfDue(), Stopped);
}

TEST(Stop, IsDueOnASignal) {
  std::atomic<bool> interrupted = false;
  {
    const StopScope scope(kForever, &interrupted);
    EXPECT_NO_THROW(StopIfDue());
    interrupted = true;
    EXPECT_THROW(StopIfDue(), Stopped);
  }
  EXPECT_NO_THROW(StopIfDue());
}

TEST(Stop, IsDueAfterSoManyLooks) {
  const StopScope scope(int64_t{2});
  EXPECT_NO_THROW(StopIfDue());
  EXPECT_NO_THROW(StopIfDue());
  EXPECT_THROW(StopIfDue(), Stopped);
  EXPECT_EQ(scope.looks(), 3);
}

TEST(Stop, OuterScopesApplyInsideOfOthers) {
  const StopScope outer(0, nullptr);
  {
    const StopScope inner(kForever, nullptr);
    EXPECT_FALSE(inner.IsDue());
    EXPECT_THROW(StopIfDue(), Stopped);
    {
      const StopsLater later;
      EXPECT_NO_THROW(StopIfDue());
      const StopScope innermost(0, nullptr);
      EXPECT_THROW(StopIfDue(), Stopped);
    }
    EXPECT_THROW(StopIfDue(), Stopped);
  }
  EXPECT_THROW(StopIfDue(), Stopped);
}

TEST(Stop, IsOfOneThread) {
  const StopScope scope(0, nullptr);
  std::thread([] { EXPECT_NO_THROW(StopIfDue()); }).join();
}

}  // namespace
}  // namespace acplan::solver
