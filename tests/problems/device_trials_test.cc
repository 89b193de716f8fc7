#include "problems/device_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

namespace acplan::problems {
namespace {

constexpr int64_t kDevice = 1'000'000;

// A plan for a budget recomputes what the budget lacks.
DeviceTrial TrialOf(int64_t budget_bytes, bool fits) {
  return {.budget_bytes = budget_bytes,
          .has_plan = true,
          .live_bytes = budget_bytes,
          .ms = 1e-3 * static_cast<double>(kDevice - budget_bytes),
          .fits = {fits}};
}

TrialSearch SearchOf(const std::vector<DeviceTrial>& trials) {
  return {.memory_bytes = kDevice, .trials = trials};
}

TEST(DeviceTrialsTest, BudgetsOfUseHavePlansThatRecomputeLessThanTheBest) {
  TrialSearch search = SearchOf(
      {TrialOf(kDevice, false), TrialOf(700'000, false), TrialOf(500'000, true),
       TrialOf(700'000, false), TrialOf(400'000, true)});
  EXPECT_EQ(search.BudgetsOfUse(), (std::vector<int64_t>{700'000, kDevice}));
  search.trials.push_back(
      {.is_near = true, .has_plan = true, .ms = 400, .fits = {true}});
  EXPECT_EQ(search.BudgetsOfUse(), (std::vector<int64_t>{700'000, kDevice}));
  EXPECT_EQ(search.Floor()->budget_bytes, 500'000);
  search.trials.push_back(
      {.is_near = true, .has_plan = true, .ms = 200, .fits = {true}});
  EXPECT_EQ(search.BudgetsOfUse(), (std::vector<int64_t>{kDevice}));
  EXPECT_EQ(search.Floor()->budget_bytes, 700'000);
}

TEST(DeviceTrialsTest, WidestGapBeginsAtTheFloor) {
  const TrialSearch search =
      SearchOf({TrialOf(kDevice, false), TrialOf(700'000, false),
                TrialOf(200'000, true)});
  EXPECT_EQ(search.BudgetInWidestGap(), 450'000);
  EXPECT_EQ(SearchOf({TrialOf(kDevice, false)}).BudgetInWidestGap(),
            std::nullopt);
}

// Whatever fits, budgets in gaps are new and lie between budgets of use or the floor, and there
// is an end of them.
TEST(DeviceTrialsTest, GapsAreFilledAndEnd) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TrialSearch search = SearchOf(
        {TrialOf(kDevice, false), TrialOf(kDevice / 3, seed % 2 == 0)});
    int steps = 0;
    while (const std::optional<int64_t> next = search.BudgetInWidestGap()) {
      ASSERT_LT(++steps, 1000);
      ASSERT_GT(*next, kDevice / 3);
      ASSERT_LT(*next, kDevice);
      ASSERT_EQ(
          std::ranges::count(search.trials, *next, &DeviceTrial::budget_bytes),
          0);
      if (const auto best = search.BestOfAll(); best.trial != nullptr) {
        ASSERT_LT(TrialOf(*next, false).ms, best.trial->ms);
      }
      search.trials.push_back(TrialOf(*next, random() % 8 == 0));
    }
    EXPECT_GT(steps, 0);
  }
}

}  // namespace
}  // namespace acplan::problems
