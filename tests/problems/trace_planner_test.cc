#include "problems/trace_planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

#include "graph/trace.h"
#include "tests/problems/trace_case.h"

namespace acplan::problems {
namespace {

constexpr int kSteps = 80;
constexpr int64_t kMostPlans = 1000;
constexpr double kLeastProven = 0.8;

// Calls `check` with a number of steps of a kind, and all plans of each.
template <typename Check>
void ForEachCase(const TraceCaseKind& kind, int steps, const Check& check) {
  int done = 0;
  for (unsigned seed = 0; done < steps && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(fmt::format("{}, seed {}", kind.name, seed));
    const TraceCase c(kind, seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, kMostPlans);
    if (!plans || plans->plans.size() < 2) continue;
    ++done;
    check(c, *plans, seed);
  }
}

class EveryPlanOfATrace : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, EveryPlanOfATrace,
                         ::testing::ValuesIn(TraceCaseKinds()),
                         [](const auto& of) { return of.param.name; });

TEST_P(EveryPlanOfATrace, IsOfAValidTrace) {
  ForEachCase(GetParam(), 20, [](const TraceCase& c, const TracePlans&, auto) {
    EXPECT_EQ(graph::ParseTrace(graph::ToJson(c.trace), "step"), c.trace);
  });
}

TEST_P(EveryPlanOfATrace, IsNoBetterThanTheAnswer) {
  int proven = 0;
  int asked = 0;
  const auto check = [&](const TraceCase& c, const TracePlans& plans,
                         unsigned seed) {
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      const TraceSolution solution = SolveTraceProblem(c.problem, budget, {});
      ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "")
          << "budget " << budget;
      ++asked;
      proven += solution.status == SearchStatus::kOptimal ||
                        solution.status == SearchStatus::kInfeasible
                    ? 1
                    : 0;
    }
  };
  ForEachCase(GetParam(), kSteps, check);
  const double share = static_cast<double>(proven) / asked;
  EXPECT_GE(share, kLeastProven) << proven << " of " << asked;
  RecordProperty("proven", fmt::format("{} of {}", proven, asked));
}

// Whatever the witnesses: a plan that keeps the decisions is one of the
// relaxation, with a budget that it just meets.
TEST_P(EveryPlanOfATrace, IsOneOfTheRelaxation) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    std::mt19937 random(seed + 3);
    for (int k = 0; k < 20; ++k) {
      const TracePlans::Plan& plan = plans.plans[random() % plans.plans.size()];
      const std::vector<Decision> decisions =
          RandomDecisions(c.problem, plan, random);
      const Witnesses witnesses =
          k % 3 == 0 ? FirstWitnesses(c.problem)
                     : RandomWitnesses(c.problem, decisions, random);
      ASSERT_EQ(RelaxationMismatch(c.problem, witnesses, decisions,
                                   plan.peak_bytes, plan.recompute_ms),
                "")
          << "plan " << &plan - plans.plans.data() << ", round " << k;
    }
  };
  ForEachCase(GetParam(), kSteps, check);
}

// A plan that is known is no worse than the answer, and one that does not fit
// is of no use.
TEST_P(EveryPlanOfATrace, MayBeKnownBefore) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    std::mt19937 random(seed + 4);
    for (int k = 0; k < 3; ++k) {
      const TracePlans::Plan& known =
          plans.plans[random() % plans.plans.size()];
      const int64_t budget =
          plans.plans[random() % plans.plans.size()].peak_bytes;
      const TraceSolution solution =
          SolveTraceProblem(c.problem, budget, {}, known.modules);
      ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "");
      if (known.peak_bytes > budget) continue;
      EXPECT_TRUE(solution.status == SearchStatus::kOptimal ||
                  solution.status == SearchStatus::kFeasible);
      EXPECT_LE(solution.use.recompute_ms, known.recompute_ms * (1 + 1e-9));
    }
  };
  ForEachCase(GetParam(), 20, check);
}

// What stops at a gap has proven a bound that near.
TEST_P(EveryPlanOfATrace, IsNotMuchBetterThanAnAnswerWithAGap) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      for (const double gap : {0.01, 0.3}) {
        solver::SearchLimits limits;
        limits.gap = gap;
        const TraceSolution solution =
            SolveTraceProblem(c.problem, budget, limits);
        ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "");
        if (solution.stopped_by != solver::StoppedBy::kGap) continue;
        EXPECT_EQ(solution.status, SearchStatus::kFeasible);
        EXPECT_GE(solution.bound_ms,
                  solution.use.recompute_ms * (1 - gap) * (1 - 1e-9));
      }
    }
  };
  ForEachCase(GetParam(), 20, check);
}

}  // namespace
}  // namespace acplan::problems
