#include "problems/trace/trace_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "problems/trace/trace_least_budget.h"
#include "solver/stop.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using solver::SearchLimits;
using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;

constexpr int kSteps = Repetitions(80);
constexpr int kFewSteps = Repetitions(20);
constexpr int64_t kMostPlans = 1000;
constexpr double kLeastProven = 0.99;

// Calls `check` with a number of steps of a kind, and all plans of each.
template <typename Check>
void ForEachCase(const TraceCaseKind& kind, int steps, const Check& check) {
  int cases = 0;
  for (unsigned seed = 0; cases < steps && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(fmt::format("{}, seed {}", kind.name, seed));
    const TraceCase c(kind, seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, kMostPlans);
    if (!plans || plans->plans.size() < 2) continue;
    ++cases;
    check(c, *plans, seed);
  }
}

class EveryPlanOfATrace : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, EveryPlanOfATrace,
                         ::testing::ValuesIn(TraceCaseKinds()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryPlanOfATrace, IsOfAValidTrace) {
  ForEachCase(
      GetParam(), kFewSteps, [](const TraceCase& c, const TracePlans&, auto) {
        graph::Trace of_file = c.trace;  // which has no segments
        for (graph::TraceModule& module : of_file.modules) {
          module.run_end = graph::kNone;
        }
        EXPECT_EQ(graph::ParseTrace(graph::ToJson(c.trace), "step"), of_file);
      });
}

TEST_P(EveryPlanOfATrace, IsNoBetterThanTheAnswer) {
  int proven = 0;
  int questions = 0;
  const auto check = [&](const TraceCase& c, const TracePlans& plans,
                         unsigned seed) {
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      const TraceSolution solution = SolveTraceProblem(c.problem, budget, {});
      ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "")
          << "budget " << budget;
      ++questions;
      proven += solution.status == SearchStatus::kOptimal ||
                        solution.status == SearchStatus::kInfeasible
                    ? 1
                    : 0;
    }
  };
  ForEachCase(GetParam(), kSteps, check);
  const double share = static_cast<double>(proven) / questions;
  EXPECT_GE(share, kLeastProven) << proven << " of " << questions;
  RecordProperty("proven", fmt::format("{} of {}", proven, questions));
}

// For all witnesses: a plan that keeps the decisions is one of the relaxation,
// with a budget that it just meets.
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

// Searches that share their policies answer like searches that do not, and the plans that
// they met are plans.
TEST_P(EveryPlanOfATrace, IsNoBetterThanTheAnswersOfASeries) {
  int met = 0;
  const auto check = [&](const TraceCase& c, const TracePlans& plans,
                         unsigned seed) {
    PolicyMemo memo(c.problem);
    std::mt19937 random(seed + 5);
    for (int k = 0; k < 6; ++k) {
      const int64_t budget =
          plans.plans[random() % plans.plans.size()].peak_bytes;
      const int64_t near_bytes = budget * 11 / 10;
      const TraceSolution solution = SolveTraceProblem(
          c.problem, budget, {}, {}, {.near_bytes = near_bytes, .memo = &memo});
      ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "")
          << "budget " << budget << ", search " << k;
      double last_ms = 0;
      for (const NearPlan& plan : solution.near) {
        const auto use = SimulatedUse(c.problem, plan.modules);
        ASSERT_TRUE(use);
        EXPECT_EQ(use->peak_bytes, plan.peak_bytes);
        EXPECT_EQ(use->recompute_ms, plan.ms);
        EXPECT_LE(plan.peak_bytes, near_bytes);
        EXPECT_GE(plan.ms, last_ms);
        last_ms = plan.ms;
      }
      met += std::ssize(solution.near) > 1 ? 1 : 0;
    }
  };
  ForEachCase(GetParam(), kFewSteps, check);
  EXPECT_GE(met, Enough(5));
}

// The answer is no worse than a known plan; a known plan that does not fit is
// ignored.
TEST_P(EveryPlanOfATrace, MayBeKnownBefore) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    std::mt19937 random(seed + 4);
    for (int k = 0; k < 3; ++k) {
      const TracePlans::Plan& known_plan =
          plans.plans[random() % plans.plans.size()];
      const int64_t budget =
          plans.plans[random() % plans.plans.size()].peak_bytes;
      const TraceSolution solution =
          SolveTraceProblem(c.problem, budget, {}, known_plan.modules);
      ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "");
      if (known_plan.peak_bytes > budget) continue;
      EXPECT_TRUE(solution.status == SearchStatus::kOptimal ||
                  solution.status == SearchStatus::kFeasible);
      EXPECT_LE(solution.use.recompute_ms,
                known_plan.recompute_ms * (1 + 1e-9));
    }
  };
  ForEachCase(GetParam(), kFewSteps, check);
}

// A cut-off changes no answer that costs less, and bounds all others.
TEST_P(EveryPlanOfATrace, CountsBelowTheCutOffAlone) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    std::mt19937 random(seed + 5);
    const int64_t budget =
        plans.plans[random() % plans.plans.size()].peak_bytes;
    const std::optional<double> least_ms = plans.LeastMs(budget);
    ASSERT_TRUE(least_ms);
    for (const double cut_off : {*least_ms, *least_ms * .9, *least_ms + .01}) {
      SCOPED_TRACE(cut_off);
      const TraceSolution solution =
          SolveTraceProblem(c.problem, budget, {.cut_off = cut_off});
      if (cut_off > *least_ms) {
        ASSERT_EQ(Mismatch(plans, budget, c.problem, solution), "");
        continue;
      }
      EXPECT_EQ(solution.status, SearchStatus::kNoSolution);
      EXPECT_EQ(solution.stopped_by, solver::StoppedBy::kNothing);
      EXPECT_EQ(solution.bound_ms, cut_off);
    }
    const int64_t least_bytes = FindLeastPlan(c.problem).budget.bytes;
    const TraceMinimum cut =
        FindLeastPlan(c.problem, {.cut_off = static_cast<double>(least_bytes)});
    EXPECT_EQ(cut.budget.bound_bytes, least_bytes);
    EXPECT_EQ(FindLeastPlan(c.problem,
                            {.cut_off = 1.0 + static_cast<double>(least_bytes)})
                  .budget.bytes,
              least_bytes);
  };
  ForEachCase(GetParam(), kFewSteps, check);
}

// Without limits a plan for a budget is a plan for all larger ones.
TEST_P(EveryPlanOfATrace, IsNoneTheBetterForALargerBudget) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    double least_ms = std::numeric_limits<double>::infinity();
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      const TraceSolution solution = SolveTraceProblem(c.problem, budget, {});
      const bool has_plan =
          !solution.modules.empty() || plans.plans.front().peak_bytes <= budget;
      ASSERT_EQ(has_plan, plans.LeastPeakBytes() <= budget)
          << "budget " << budget;
      if (!has_plan) continue;
      ASSERT_LE(solution.use.recompute_ms, least_ms * (1 + 1e-9))
          << "budget " << budget;
      least_ms = solution.use.recompute_ms;
    }
  };
  ForEachCase(GetParam(), 2 * kFewSteps, check);
}

// A search that is stopped at once returns the plan that it knew.
TEST_P(EveryPlanOfATrace, IsKeptWhereALimitStrikes) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    std::mt19937 random(seed + 5);
    const TracePlans::Plan& known_plan =
        plans.plans[random() % plans.plans.size()];
    for (const int64_t more : {0, 4096}) {
      const TraceSolution solution =
          SolveTraceProblem(c.problem, known_plan.peak_bytes + more,
                            {.time_limit_s = 0}, known_plan.modules);
      ASSERT_EQ(
          Mismatch(plans, known_plan.peak_bytes + more, c.problem, solution),
          "");
      EXPECT_LE(solution.use.recompute_ms,
                known_plan.recompute_ms * (1 + 1e-9));
    }
  };
  ForEachCase(GetParam(), kFewSteps, check);
}

// Stops a search at each of some looks at its clock, and calls `check` with the search's
// answer. A search that stops before its first plan is simulated has no answer.
template <typename Search, typename Check>
void StopAnywhere(const Search& search, const Check& check) {
  int64_t looks = 0;
  {
    const solver::StopScope scope(std::numeric_limits<int64_t>::max());
    search();
    looks = scope.looks();
  }
  int answers = 0;
  for (int64_t k = 0; k < looks; k += 1 + looks / 20) {
    SCOPED_TRACE(fmt::format("stopped at look {} of {}", k, looks));
    const solver::StopScope scope(k);
    try {
      const auto answer = search();
      const solver::StopsLater later;
      check(answer);
      ++answers;
    } catch (const solver::Stopped&) {
      EXPECT_LE(k, 2);
    }
  }
  EXPECT_TRUE(looks < 4 || answers > 0);
}

TEST_P(EveryPlanOfATrace, IsNoBetterThanASearchThatStopsSays) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      StopAnywhere([&] { return SolveTraceProblem(c.problem, budget, {}); },
                   [&](const TraceSolution& solution) {
                     ASSERT_EQ(Mismatch(plans, budget, c.problem, solution),
                               "");
                   });
    }
    StopAnywhere([&] { return FindLeastPlan(c.problem); },
                 [&](const TraceMinimum& least) {
                   EXPECT_LE(least.budget.bound_bytes, plans.LeastPeakBytes());
                   EXPECT_GE(least.budget.bytes, plans.LeastPeakBytes());
                   EXPECT_EQ(
                       c.problem.simulator.Simulate(least.modules).peak_bytes,
                       least.budget.bytes);
                 });
  };
  ForEachCase(GetParam(), kFewSteps, check);
}

TEST_P(EveryPlanOfATrace, NeedsTheLeastBudget) {
  int proven = 0;
  const auto check = [&](const TraceCase& c, const TracePlans& plans, auto) {
    const TraceMinimum least = FindLeastPlan(c.problem);
    ASSERT_LE(least.budget.bound_bytes, plans.LeastPeakBytes());
    ASSERT_GE(least.budget.bytes, plans.LeastPeakBytes());
    ASSERT_EQ(c.problem.simulator.Simulate(least.modules).peak_bytes,
              least.budget.bytes);
    ASSERT_EQ(least.budget.proven,
              least.budget.bytes == least.budget.bound_bytes);
    proven += least.budget.proven ? 1 : 0;
    // A search that is stopped at once says how near it is.
    const TraceMinimum stopped = FindLeastPlan(c.problem, {.time_limit_s = 0});
    EXPECT_LE(stopped.budget.bound_bytes, plans.LeastPeakBytes());
    EXPECT_GE(stopped.budget.bytes, plans.LeastPeakBytes());
  };
  ForEachCase(GetParam(), kSteps, check);
  EXPECT_GE(proven, kLeastProven * kSteps);
}

// The search meets a given budget if a plan meets it, or proves it too small.
TEST_P(EveryPlanOfATrace, MeetsABudgetOrIsProvenNotTo) {
  const auto check = [](const TraceCase& c, const TracePlans& plans,
                        unsigned seed) {
    for (const int64_t budget : BudgetsAbout(plans, seed)) {
      if (budget <= 0) continue;
      const TraceMinimum least = FindLeastPlan(c.problem, {}, budget);
      ASSERT_LE(least.budget.bound_bytes, plans.LeastPeakBytes());
      ASSERT_EQ(least.budget.bytes <= budget, plans.LeastPeakBytes() <= budget);
      ASSERT_EQ(least.budget.bound_bytes > budget,
                plans.LeastPeakBytes() > budget);
    }
  };
  ForEachCase(GetParam(), kFewSteps, check);
}

// A search that stops at a gap has proven a bound that near.
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
  ForEachCase(GetParam(), kFewSteps, check);
}

// A trace of the repository as a problem. It cannot be copied.
class StoredTrace {
 public:
  explicit StoredTrace(const std::string& name,
                       std::optional<int> max_units = {})
      : trace(graph::ReadTrace(ACPLAN_TEST_DATA_DIR "/traces/" + name +
                               ".trace.json.gz")),
        profile(graph::Aggregate(trace)),
        tree(profile),
        problem(BuildTraceProblem(trace, profile, tree,
                                  {.max_units = max_units})) {}
  StoredTrace(const StoredTrace&) = delete;
  StoredTrace& operator=(const StoredTrace&) = delete;

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  const TraceProblem problem;
};

// Modules that are called several times, and operators that no decision on
// storages tells apart.
TEST(StoredTraceTest, ALargerBudgetIsNoWorse) {
  const StoredTrace stored("repeated_modules");
  const TraceSolution small = SolveTraceProblem(stored.problem, 22016, {});
  const TraceSolution large = SolveTraceProblem(stored.problem, 26106, {});
  EXPECT_EQ(small.status, SearchStatus::kOptimal);
  EXPECT_EQ(large.status, SearchStatus::kOptimal);
  EXPECT_LE(large.use.recompute_ms, small.use.recompute_ms);
}

// A unit that costs nothing counts towards the limit all the same.
TEST(StoredTraceTest, HasNoMoreUnitsThanMayBe) {
  for (const int most : {0, 1, 2, 3}) {
    SCOPED_TRACE(most);
    const StoredTrace stored("free_unit", most);
    const TraceSolution solution = SolveTraceProblem(stored.problem, 40959, {});
    EXPECT_LE(std::ssize(solution.modules), most);
    EXPECT_EQ(solution.status,
              most == 0 ? SearchStatus::kInfeasible : SearchStatus::kOptimal);
    EXPECT_EQ(FindLeastPlan(stored.problem).modules.empty(), most == 0);
  }
}

// Keeps a result that was computed from another one before that was written to,
// without keeping the other one.
TEST(StoredTraceTest, KeepsWhatReadAResultBeforeItWasWrittenTo) {
  const StoredTrace stored("read_before_write");
  const graph::ModuleTree tree(stored.profile);
  PlanOptions options;
  options.memory.model = MemoryModel::kTrace;
  options.may_skip = true;
  const PlanningProblem problem =
      BuildPlanningProblem(stored.profile, tree, options, &stored.trace);
  const Plan plan = PlanFor(problem, 20480, {}).plan;
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(plan.recompute_ms, 0);
  ASSERT_EQ(plan.modules.size(), 1);
  const std::vector<PlannedOp>& ops = plan.modules[0].ops;
  EXPECT_TRUE(ops[3].Saves());
  EXPECT_FALSE(ops[2].Saves() || ops[2].RunsAgain());
}

// A search that is stopped at once still has a plan that fits, and a bound that holds.
TEST(StoredTraceTest, StoppedSearchesHaveAPlan) {
  const StoredTrace stored("segformer");
  const int64_t unplanned = SimulatedUse(stored.problem, {})->peak_bytes;
  const TraceSolution optimal =
      SolveTraceProblem(stored.problem, unplanned * 3 / 4, {.gap = .05});
  ASSERT_GT(optimal.use.recompute_ms, 0);
  std::atomic<bool> interrupted = true;
  for (const SearchLimits& limits :
       {SearchLimits{.time_limit_s = 0}, SearchLimits{.time_limit_s = .001},
        SearchLimits{.interrupted = &interrupted}}) {
    const TraceSolution stopped =
        SolveTraceProblem(stored.problem, unplanned * 3 / 4, limits);
    EXPECT_EQ(stopped.status, SearchStatus::kFeasible);
    EXPECT_EQ(stopped.stopped_by, limits.interrupted != nullptr
                                      ? solver::StoppedBy::kInterrupt
                                      : solver::StoppedBy::kTime);
    EXPECT_LE(stopped.use.peak_bytes, unplanned * 3 / 4);
    EXPECT_EQ(SimulatedUse(stored.problem, stopped.modules)->peak_bytes,
              stopped.use.peak_bytes);
    EXPECT_LE(stopped.bound_ms, optimal.use.recompute_ms);
    const MinimumBudget least = FindLeastPlan(stored.problem, limits).budget;
    EXPECT_LT(least.bytes, unplanned);
    EXPECT_LE(least.bound_bytes, 348135936);
    EXPECT_FALSE(least.proven);
  }
}

// SegFormer with its head: stages of different sizes.
TEST(StoredTraceTest, SaysHowNearItsLeastBudgetIs) {
  constexpr int64_t kLeast = 348135936;
  const StoredTrace stored("segformer");
  const MinimumBudget least =
      FindLeastPlan(stored.problem, {.time_limit_s = 1}).budget;
  EXPECT_LE(least.bound_bytes, kLeast);
  EXPECT_GE(least.bytes, kLeast);
  // These bounds are those of the first relaxation and its plan.
  EXPECT_GE(least.bound_bytes, kLeast * .85);
  EXPECT_LE(least.bytes, kLeast * 1.1);
}

// Near the least budget the plans of relaxations do not fit.
TEST(StoredTraceTest, HasAPlanWhereverOneFits) {
  const StoredTrace stored("segformer");
  for (const int64_t budget : {350'000'000, 400'000'000}) {
    const TraceSolution solution = SolveTraceProblem(
        stored.problem, budget, {.time_limit_s = 30, .gap = .5});
    EXPECT_FALSE(solution.modules.empty());
    EXPECT_LE(solution.use.peak_bytes, budget);
    EXPECT_GT(solution.bound_ms, 0);
  }
}

}  // namespace
}  // namespace acplan::problems
