#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "problems/trace/trace_least_budget.h"
#include "problems/trace/trace_search.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/repetitions.h"

// Plans that may skip are no worse than plans that may not.

namespace acplan::problems {
namespace {

using solver::SearchStatus;
using test_support::Repetitions;

constexpr int kComparedSteps = 12;
constexpr int64_t kMostPlansCompared = 1000;

// Returns the kinds without skips; the same kinds with skips have the same
// steps.
std::vector<TraceCaseKind> KindsWithoutSkips() {
  std::vector<TraceCaseKind> kinds = TraceCaseKinds();
  std::erase_if(kinds, [](const TraceCaseKind& kind) {
    return kind.skips || kind.restricts;
  });
  const size_t count = kinds.size();
  for (size_t k = 0; k < count; ++k) {
    kinds.push_back(kinds[k]);
    kinds.back().name += "_joined";
    kinds.back().joins = true;
  }
  return kinds;
}

class NeverWorse : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, NeverWorse,
                         ::testing::ValuesIn(KindsWithoutSkips()),
                         [](const auto& test) { return test.param.name; });

TEST_P(NeverWorse, AreSkips) {
  TraceCaseKind with_skips = GetParam();
  with_skips.skips = true;
  int steps = 0, better = 0, asked = 0;
  const auto goes_on = [&] {
    return steps < Repetitions(kComparedSteps) ||
           (better == 0 && steps < kComparedSteps);
  };
  for (unsigned seed = 0; goes_on() && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const TraceCase without_skips(GetParam(), seed);
    const TraceCase with(with_skips, seed);
    ASSERT_EQ(without_skips.trace, with.trace);
    // Small steps, for which everything is proven in no time.
    if (!EnumeratePlans(with.problem, {}, kMostPlansCompared)) continue;
    const TraceMinimum least = FindLeastPlan(without_skips.problem);
    const TraceMinimum least_with = FindLeastPlan(with.problem);
    ASSERT_LE(least_with.budget.bound_bytes, least.budget.bytes);
    if (!least.budget.proven || !least_with.budget.proven) continue;
    ++steps;
    ASSERT_LE(least_with.budget.bytes, least.budget.bytes);
    EXPECT_EQ(
        SolveTraceProblem(with.problem, least_with.budget.bytes - 1, {}).status,
        SearchStatus::kInfeasible);
    const int64_t baseline = with.problem.simulator.Simulate({}).peak_bytes;
    for (const int percent : {0, 15, 30, 50, 75}) {
      SCOPED_TRACE(percent);
      const int64_t budget =
          least.budget.bytes + (baseline - least.budget.bytes) * percent / 100;
      const TraceSolution plan =
          SolveTraceProblem(without_skips.problem, budget, {});
      const TraceSolution skipping =
          SolveTraceProblem(with.problem, budget, {});
      if (plan.status != SearchStatus::kOptimal) continue;
      ++asked;
      ASSERT_LE(skipping.use.peak_bytes, budget);
      ASSERT_LE(skipping.use.recompute_ms, plan.use.recompute_ms * (1 + 1e-9));
      if (skipping.use.recompute_ms < plan.use.recompute_ms * (1 - 1e-9)) {
        ++better;
      }
    }
  }
  EXPECT_GT(asked, 2 * steps);
  EXPECT_GT(better, 0);
  RecordProperty("better", fmt::format("{} of {}", better, asked));
}

}  // namespace
}  // namespace acplan::problems
