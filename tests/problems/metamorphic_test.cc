#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/any_schedule.h"
#include "problems/budget_frontier.h"
#include "problems/check/plan_rules.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/segment_plans.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/instances.h"
#include "tests/support/random_step.h"
#include "tests/support/synthetic_profile.h"

// Relations between the answers to questions that belong together: about the
// same step with more memory, with other names, in other units, in another
// order. These tests need no second planner, so the steps may be of any size.
// One step in a thousand takes as long as all others (instances.h says how to
// go through more than CI does).

namespace acplan::problems {
namespace {

using graph::StorageId;
using graph::Trace;
using graph::TraceOperator;
using test_support::End;
using test_support::First;
using test_support::Instances;
using test_support::LimitsOfInstances;

// Searches of most steps have ended by then.
solver::SearchLimits LimitsOfSteps() { return LimitsOfInstances(5000); }

test_support::StepOptions OptionsByChance(std::mt19937& random) {
  const auto half = [&] { return random() % 2 == 0; };
  return {.blocks_most = 3,
          .operators_most = 3,
          .nests = half(),
          .skips = half(),
          .shares_arguments = half(),
          .shares_storages = half(),
          .shares_modules = half(),
          .repeats = half(),
          .writes = half(),
          .draws = half(),
          .has_odd_ends = half()};
}

struct Step {
  explicit Step(unsigned seed) : random(seed) {
    const test_support::StepOptions options = OptionsByChance(random);
    trace = test_support::RandomStep(random, options);
    may_skip = random() % 2 == 0;
    if (random() % 2 == 0) segments = SegmentKind::kAuto;
  }

  Families ProblemsOf(const Trace& source,
                      std::optional<int> max_units = std::nullopt) const {
    PlanOptions options;
    options.max_units = max_units;
    options.memory.model = MemoryModel::kTrace;
    options.may_skip = may_skip;
    return BuildFamilies(source, options, {.kind = segments});
  }

  std::mt19937 random;
  Trace trace;
  bool may_skip = false;
  SegmentKind segments = SegmentKind::kNone;
};

// Returns budgets from the least one that a search found to the bytes that the
// step needs without a plan.
std::vector<int64_t> BudgetsOf(const Families& problems, std::mt19937& random) {
  const int64_t least = LeastPlan(problems, LimitsOfSteps()).least.budget.bytes;
  const int64_t most = problems.front().problem.unplanned_peak_bytes;
  std::vector<int64_t> budgets = {least, most};
  for (int k = 0; k < 2; ++k) {
    budgets.push_back(
        least +
        static_cast<int64_t>(random() % std::max<int64_t>(1, most - least)));
  }
  std::ranges::sort(budgets);
  return budgets;
}

bool IsProven(const Plan& plan) {
  return plan.status == PlanStatus::kOptimal ||
         plan.status == PlanStatus::kInfeasible;
}

// Compares two answers to the same question, where the other's milliseconds are
// `times` as long.
void ExpectTheSame(const Plan& one, const Plan& other, double times = 1) {
  if (!IsProven(one) || !IsProven(other)) {
    // A bound holds for every plan, no matter which search found it.
    if (!one.HasPlan() || !other.HasPlan()) return;
    EXPECT_LE(one.bound_ms * times, other.recompute_ms * (1 + 1e-9));
    EXPECT_LE(other.bound_ms, one.recompute_ms * times * (1 + 1e-9));
    return;
  }
  EXPECT_EQ(one.status, other.status);
  EXPECT_NEAR(one.recompute_ms * times, other.recompute_ms,
              1e-8 * (1 + other.recompute_ms));
}

TEST(MetamorphicTest, MoreMemoryIsNeverWorse) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const Families problems = step.ProblemsOf(step.trace);
    std::optional<Plan> last;
    for (const int64_t budget : BudgetsOf(problems, step.random)) {
      if (budget <= 0) continue;
      Plan plan = PlanFor(problems, budget, LimitsOfSteps()).plan;
      if (last) {
        EXPECT_LE(plan.bound_ms, last->recompute_ms * (1 + 1e-9));
        if (IsProven(plan)) {
          EXPECT_LE(plan.recompute_ms, last->recompute_ms * (1 + 1e-9));
        }
      }
      if (plan.HasPlan()) last = std::move(plan);
    }
  }
}

// For these steps the search once had no proof for some budget after five
// seconds: it distinguished, one by one, groups of operators that nothing
// needs, and plans that cost more than the best one in any case.
TEST(MetamorphicTest, SmallStepsAreProven) {
  for (const unsigned seed :
       {205, 327, 774, 878, 912, 947, 1987, 2531, 2850, 2874, 3960}) {
    SCOPED_TRACE(seed);
    Step step(seed);
    const Families problems = step.ProblemsOf(step.trace);
    for (const int64_t budget : BudgetsOf(problems, step.random)) {
      if (budget <= 0) continue;
      EXPECT_TRUE(IsProven(PlanFor(problems, budget, {}).plan)) << budget;
    }
  }
}

TEST(MetamorphicTest, MoreUnitsAreNeverWorse) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const std::vector<int64_t> budgets =
        BudgetsOf(step.ProblemsOf(step.trace), step.random);
    std::vector<std::optional<Plan>> last(budgets.size());
    for (const std::optional<int> most :
         {std::optional(0), std::optional(1), std::optional(2),
          std::optional(3), std::optional<int>()}) {
      const Families problems = step.ProblemsOf(step.trace, most);
      for (size_t i = 0; i < budgets.size(); ++i) {
        if (budgets[i] <= 0) continue;
        Plan plan = PlanFor(problems, budgets[i], LimitsOfSteps()).plan;
        if (most) {
          EXPECT_LE(std::ssize(plan.modules), *most);
        }
        if (last[i]) {
          EXPECT_LE(plan.bound_ms, last[i]->recompute_ms * (1 + 1e-9));
          EXPECT_NE(plan.status, PlanStatus::kInfeasible);
        }
        if (plan.HasPlan()) last[i] = std::move(plan);
      }
    }
  }
}

TEST(MetamorphicTest, NothingFitsBelowTheLeast) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    const Step step(k);
    const Families problems = step.ProblemsOf(step.trace);
    const LeastOfFamilies least = LeastPlan(problems, LimitsOfSteps());
    const MinimumBudget& budget = least.least.budget;
    ASSERT_LE(budget.bound_bytes, budget.bytes);
    EXPECT_TRUE(
        PlanFor(problems, budget.bytes, LimitsOfSteps(), least.of_family)
            .plan.HasPlan());
    if (!budget.proven || budget.bytes <= 1) continue;
    EXPECT_FALSE(
        PlanFor(problems, budget.bytes - 1, LimitsOfSteps()).plan.HasPlan());
  }
}

Trace Scaled(Trace trace, int64_t bytes, double ms) {
  for (graph::TraceStorage& storage : trace.storages) storage.bytes *= bytes;
  if (trace.peak_bytes) *trace.peak_bytes *= bytes;
  for (TraceOperator& op : trace.operators) op.runtime_ms *= ms;
  return trace;
}

// Makes all storages whole allocations; others would be rounded up.
Trace InAllocations(Trace trace) {
  for (graph::TraceStorage& storage : trace.storages) storage.bytes *= 512;
  trace.peak_bytes = std::nullopt;
  return trace;
}

TEST(MetamorphicTest, UnitsOfBytesAndTimesDoNotMatter) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const int64_t bytes = 1 + static_cast<int64_t>(step.random() % 1000);
    const double ms = step.random() % 2 == 0 ? 1. / 1024 : 3;
    const Trace trace = InAllocations(step.trace);
    const Families problems = step.ProblemsOf(trace);
    const Families scaled = step.ProblemsOf(Scaled(trace, bytes, ms));
    for (const int64_t budget : BudgetsOf(problems, step.random)) {
      if (budget <= 0) continue;
      ExpectTheSame(PlanFor(problems, budget, LimitsOfSteps()).plan,
                    PlanFor(scaled, budget * bytes, LimitsOfSteps()).plan, ms);
    }
  }
}

// Reorders the storages, and renames modules except for the numbers that runs
// go by.
Trace Renamed(Trace trace, std::mt19937& random) {
  const graph::IdRange<StorageId> ids = trace.storages.ids();
  std::vector<StorageId> order(ids.begin(), ids.end());
  std::ranges::shuffle(order, random);
  const graph::IndexedVector<StorageId, StorageId> place(std::move(order));
  const auto move = [&](StorageId& storage) { storage = place[storage]; };
  const auto move_all = [&](std::vector<StorageId>& moved_storages) {
    std::ranges::for_each(moved_storages, move);
    std::ranges::sort(moved_storages);
  };
  graph::IndexedVector<StorageId, graph::TraceStorage> storages(
      trace.storages.size());
  for (const StorageId s : place.ids()) {
    storages[place[s]] = trace.storages[s];
  }
  trace.storages = std::move(storages);
  for (graph::TraceModule& module : trace.modules) {
    move_all(module.parameters);
    move_all(module.buffers);
    module.fqn = "Another" + module.fqn;
    module.class_name = "C" + std::to_string(random() % 100);
  }
  for (graph::TraceCall& call : trace.calls) {
    move_all(call.inputs);
    move_all(call.further_inputs);
    move_all(call.outputs);
  }
  for (TraceOperator& op : trace.operators) {
    for (std::vector<StorageId>* list :
         {&op.reads, &op.creates, &op.outputs, &op.mutates}) {
      move_all(*list);
    }
  }
  for (graph::TraceTensor& tensor : trace.tensors) move(tensor.storage);
  for (graph::SavedTensor& saved : trace.saved) move(saved.storage);
  return trace;
}

TEST(MetamorphicTest, NamesAndOrdersDoNotMatter) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const Trace renamed = graph::ParseTrace(
        graph::ToJson(Renamed(step.trace, step.random)), "renamed");
    const Families problems = step.ProblemsOf(step.trace);
    const Families others = step.ProblemsOf(renamed);
    EXPECT_EQ(problems.front().problem.unplanned_peak_bytes,
              others.front().problem.unplanned_peak_bytes);
    for (const int64_t budget : BudgetsOf(problems, step.random)) {
      if (budget <= 0) continue;
      ExpectTheSame(PlanFor(problems, budget, LimitsOfSteps()).plan,
                    PlanFor(others, budget, LimitsOfSteps()).plan);
    }
  }
}

TEST(MetamorphicTest, PlansAreWhatIsSaidOfThem) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const Families problems = step.ProblemsOf(step.trace);
    for (const int64_t budget : BudgetsOf(problems, step.random)) {
      if (budget <= 0) continue;
      const PlanOfFamilies answer = PlanFor(problems, budget, LimitsOfSteps());
      if (!answer.plan.HasPlan()) continue;
      const PlanningProblem& problem = problems[answer.family].problem;
      const Trace& trace = *problem.trace;
      EXPECT_EQ(FirstBrokenRule(*problem.profile, answer.plan, {}, &trace),
                std::nullopt);
      const graph::Simulation use = graph::Simulate(
          trace, CheckpointedModules(trace, answer.plan.modules));
      EXPECT_EQ(use.peak_bytes, answer.plan.peak_bytes);
      EXPECT_LE(use.peak_bytes, budget);
      EXPECT_NEAR(use.recompute_ms, answer.plan.recompute_ms,
                  1e-9 * (1 + use.recompute_ms));
      if (!step.may_skip) continue;
      const Plan bounded =
          WithAnySchedule(problems.front().problem, answer.plan);
      ASSERT_TRUE(bounded.any_schedule);
      EXPECT_LE(bounded.any_schedule->bound_ms,
                answer.plan.recompute_ms * (1 + 1e-9));
    }
  }
}

TEST(MetamorphicTest, FrontiersAreOfPlans) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    const Families problems = step.ProblemsOf(step.trace);
    std::vector<int64_t> budgets = BudgetsOf(problems, step.random);
    std::erase_if(budgets, [](int64_t budget) { return budget <= 0; });
    const auto repeated = std::ranges::unique(budgets);
    budgets.erase(repeated.begin(), repeated.end());
    const std::vector<Plan> frontier =
        PlanFrontier(problems, budgets, LimitsOfSteps());
    ASSERT_EQ(frontier.size(), budgets.size());
    for (const Plan& plan : frontier) {
      ExpectTheSame(plan,
                    PlanFor(problems, plan.budget_bytes, LimitsOfSteps()).plan);
    }
  }
}

// Random legal plans: random units, each with random operators saved and
// everything else skipped that nothing needs, or without skips.
TEST(MetamorphicTest, NoPlanByChanceBeatsABound) {
  int fitting = 0;
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    Step step(k);
    step.segments = SegmentKind::kNone;
    const Families problems = step.ProblemsOf(step.trace);
    const auto& trace_problem =
        std::get<TraceProblem>(problems.front().problem.formulation);
    const std::vector<int64_t> budgets = BudgetsOf(problems, step.random);
    std::vector<Plan> plans;
    for (const int64_t budget : budgets) {
      if (budget > 0)
        plans.push_back(PlanFor(problems, budget, LimitsOfSteps()).plan);
    }
    const int64_t least =
        LeastPlan(problems, LimitsOfSteps()).least.budget.bound_bytes;
    for (int sample = 0; sample < 10; ++sample) {
      const std::vector<graph::CheckpointedModule> modules =
          PlanByChance(trace_problem, step.random);
      const std::optional<graph::Simulation> use =
          SimulatedUse(trace_problem, modules);
      if (!use) continue;
      EXPECT_GE(std::max<int64_t>(use->peak_bytes, 1), least);
      for (const Plan& plan : plans) {
        if (use->peak_bytes > plan.budget_bytes) continue;
        ++fitting;
        EXPECT_NE(plan.status, PlanStatus::kInfeasible);
        if (!plan.HasPlan()) continue;
        EXPECT_GE(use->recompute_ms, plan.bound_ms * (1 - 1e-9));
      }
    }
  }
  EXPECT_GT(fitting, Instances());
}

graph::Profile ProfileOf(int k) {
  return test_support::RandomProfile(k, {.most_operators = 6});
}

PlanOptions OnProfiles(const graph::Profile& profile, std::mt19937& random) {
  PlanOptions options;
  if (random() % 3 != 0) options.memory.model = DefaultMemoryModel(profile);
  options.memory.world_size = int64_t{1} << random() % 4;
  if (random() % 2 == 0) options.granularity = Granularity::kModule;
  if (random() % 3 == 0) options.max_units = 1 + static_cast<int>(random() % 3);
  return options;
}

// Returns the profile with operators that make up to 10^10 times as many bytes
// as autograd keeps of their modules.
graph::Profile WithLargeOperators(graph::Profile profile, int k) {
  std::mt19937 random(k);
  const int digits = 1 + static_cast<int>(random() % 10);
  const auto times = static_cast<int64_t>(std::pow(10.0, digits)) +
                     static_cast<int64_t>(random() % 7);
  for (graph::Module& module : profile.modules) {
    if (!module.sac || random() % 4 == 0) continue;
    std::vector<int64_t>& memory = module.sac->memory;
    // A module's operators make 2^53 bytes at most.
    const int64_t most =
        (int64_t{1} << 53) / std::max<int64_t>(1, std::ssize(memory));
    for (int64_t& bytes : memory) {
      if (random() % 5 != 0) bytes = std::min(bytes, most / times) * times;
    }
  }
  return profile;
}

struct Compared {
  int budgets = 0;
  int unproven = 0;  // by CBC
};

Compared CompareEngines(const graph::Profile& profile, int k) {
  std::mt19937 random(k);
  const graph::ModuleTree tree(profile);
  PlanOptions options = OnProfiles(profile, random);
  std::vector<PlanningProblem> problems;
  try {
    for (const Engine engine : {Engine::kLabels, Engine::kCbc}) {
      options.engine = engine;
      problems.push_back(BuildPlanningProblem(profile, tree, options));
    }
  } catch (const InputError&) {
    return {};  // not for labels, or nothing that may be a unit
  }
  const int64_t least = LeastPlan(problems[0], {}).budget.bytes;
  const int64_t most = problems[0].unplanned_peak_bytes;
  const int64_t between =
      least +
      static_cast<int64_t>(random() % std::max<int64_t>(1, most - least));
  // A need that a plan meets to the byte lies within CBC's tolerances of one
  // that it misses.
  const int64_t peak = PlanFor(problems[0], between, {}).plan.peak_bytes;
  Compared compared;
  for (const int64_t budget : {least - 1, least, between, peak, peak - 1}) {
    if (budget < 1) continue;
    const Plan by_labels = PlanFor(problems[0], budget, {}).plan;
    Plan by_cbc;
    EXPECT_NO_THROW(by_cbc = PlanFor(problems[1], budget, {}).plan);
    // Costs that differ by a factor of 10^8 lie within its tolerances, too:
    // then the plan is not proven.
    if (by_cbc.status == PlanStatus::kFeasible) {
      EXPECT_EQ(by_labels.status, PlanStatus::kOptimal);
      EXPECT_LE(by_cbc.bound_ms, by_labels.recompute_ms * (1 + 1e-9));
      ++compared.unproven;
    } else {
      EXPECT_EQ(by_labels.status, by_cbc.status) << budget;
      EXPECT_NEAR(by_labels.recompute_ms, by_cbc.recompute_ms,
                  1e-5 * (1 + by_labels.recompute_ms));
    }
    EXPECT_EQ(by_labels.HasPlan(), budget >= least);
    ++compared.budgets;
  }
  return compared;
}

void CompareEnginesOn(graph::Profile (*profile_of)(int)) {
  Compared all;
  for (int k = First(); k < End() && !testing::Test::HasFailure(); ++k) {
    SCOPED_TRACE(k);
    const Compared compared = CompareEngines(profile_of(k), k);
    all.budgets += compared.budgets;
    all.unproven += compared.unproven;
  }
  EXPECT_GE(all.budgets, 2 * Instances());
  testing::Test::RecordProperty("unproven", all.unproven);
  EXPECT_LE(all.unproven, all.budgets / 1000);
}

TEST(MetamorphicTest, EnginesAgreeOnProfiles) { CompareEnginesOn(ProfileOf); }

TEST(MetamorphicTest, EnginesAgreeOnOperatorsLargerThanTheirModules) {
  CompareEnginesOn([](int k) { return WithLargeOperators(ProfileOf(k), k); });
}

// These cases were found among the first 60,000.
TEST(MetamorphicTest, EnginesAgreeWhereTheyDidNot) {
  // On the way CBC shows a solution that keeps rows only within its tolerances.
  EXPECT_EQ(CompareEngines(ProfileOf(19281), 19281).budgets, 5);
  // A plan misses the budget by so little that CBC first accepts it and then
  // does not, and then loses all plans near it.
  EXPECT_EQ(CompareEngines(ProfileOf(1043), 1043).budgets, 5);
  EXPECT_EQ(CompareEngines(ProfileOf(19493), 19493).budgets, 5);
}

}  // namespace
}  // namespace acplan::problems
