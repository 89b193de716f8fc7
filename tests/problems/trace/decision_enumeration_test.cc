#include "tests/problems/trace/decision_enumeration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "problems/check/skip_rules.h"
#include "problems/trace/rerun_bound/rerun_bound.h"
#include "problems/trace/trace_least_budget.h"
#include "problems/trace/trace_search.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/repetitions.h"

// Compares the planner with every decision about every operator: saved,
// recomputed or skipped, and every choice of kept results. The other
// enumeration (trace_search_test.cc) takes the skipped operators from
// graph/trace/needs.h.

namespace acplan::problems {
namespace {

using solver::SearchStatus;
using test_support::Repetitions;

constexpr int kDecidedSteps = Repetitions(25);
constexpr unsigned kMostSeeds = 3000;

std::vector<TraceCaseKind> SmallKinds() {
  std::vector<TraceCaseKind> kinds = TraceCaseKinds();
  std::erase_if(kinds, [](const TraceCaseKind& kind) { return !kind.skips; });
  for (TraceCaseKind& kind : kinds) {
    kind.step.operators_least = 1;
    kind.step.operators_most = 3;
    kind.step.blocks_most = kind.joins ? 3 : 2;
  }
  return kinds;
}

class EveryDecision : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, EveryDecision,
                         ::testing::ValuesIn(SmallKinds()),
                         [](const auto& test) { return test.param.name; });

// Returns a description of what is wrong with the answers at a budget; empty:
// nothing.
std::string MismatchAt(const TraceCase& c, const TracePlans& plans,
                       int64_t budget) {
  const std::optional<double> least = plans.LeastMs(budget);
  const TraceSolution solution = SolveTraceProblem(c.problem, budget, {});
  const bool has_plan = solution.status == SearchStatus::kOptimal ||
                        solution.status == SearchStatus::kFeasible;
  if (has_plan != least.has_value()) {
    return fmt::format("status {}, and {} plan fits",
                       static_cast<int>(solution.status), least ? "a" : "no");
  }
  if (!least) return {};
  const double tolerance = 1e-9 * (1 + *least);
  if (solution.bound_ms > *least + tolerance) {
    return fmt::format("bound {} ms, but a plan recomputes {} ms",
                       solution.bound_ms, *least);
  }
  const bool is_optimal = solution.status == SearchStatus::kOptimal;
  if (is_optimal && solution.use.recompute_ms > *least + tolerance) {
    return fmt::format("optimal with {} ms, but a plan recomputes {} ms",
                       solution.use.recompute_ms, *least);
  }
  if (solution.use.recompute_ms < *least - tolerance) {
    return fmt::format("a plan of {} ms, which is none: the best has {} ms",
                       solution.use.recompute_ms, *least);
  }
  const double any = BoundReruns(c.trace, c.problem.bytes_of_rank, budget).ms;
  if (any > *least + 1e-6 * (1 + *least)) {
    return fmt::format("any schedule {} ms, but a plan recomputes {} ms", any,
                       *least);
  }
  return {};
}

TEST_P(EveryDecision, IsNoBetterThanTheAnswer) {
  int steps = 0;
  int64_t enumerated = 0;
  for (unsigned seed = 0;
       steps < kDecidedSteps && seed < kMostSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("{}, seed {}", GetParam().name, seed));
    const TraceCase c(GetParam(), seed);
    const std::optional<TracePlans> plans =
        EnumerateDecisions(c.problem, {.max_units = c.options.max_units});
    if (!plans || plans->plans.size() < 2) continue;
    ++steps;
    enumerated += std::ssize(plans->plans);
    for (const int64_t budget : BudgetsAbout(*plans, seed)) {
      ASSERT_EQ(MismatchAt(c, *plans, budget), "") << "budget " << budget;
    }
    const TraceMinimum least = FindLeastPlan(c.problem);
    ASSERT_LE(least.budget.bound_bytes, plans->LeastPeakBytes());
    ASSERT_GE(least.budget.bytes, plans->LeastPeakBytes());
    ASSERT_TRUE(!least.budget.proven ||
                least.budget.bytes == plans->LeastPeakBytes());
    for (const TracePlans::Plan& plan : plans->plans) {
      for (const graph::CheckpointedModule& unit : plan.modules) {
        ASSERT_EQ(BrokenSkipRule(c.trace, CallIndex(c.trace), unit),
                  std::nullopt);
      }
    }
  }
  EXPECT_GT(steps, 0);
  RecordProperty("steps", steps);
  RecordProperty("plans", std::to_string(enumerated));
}

}  // namespace
}  // namespace acplan::problems
