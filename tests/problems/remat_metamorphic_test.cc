#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "problems/check/remat_check.h"
#include "problems/remat/remat_problem.h"
#include "problems/remat/remat_search.h"
#include "solver/cbc_solver.h"
#include "tests/support/instances.h"
#include "tests/support/random_joint.h"
#include "tests/support/remat_milp.h"

// Relations between the answers to questions about compiled steps that belong
// together: about the same step with more memory, with other names, in other
// units, in another order; and compared with a bound of CBC. Steps are larger
// than those that remat_test.cc enumerates. instances.h says how to go through
// more than CI does.

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointNode;
using graph::JointRun;
using graph::JointSimulator;
using solver::SearchStatus;
using test_support::End;
using test_support::First;
using test_support::Instances;

// A step whose rules some plan keeps.
struct RematStep {
  explicit RematStep(unsigned seed) : random(seed) {
    do {
      const int forward = 4 + static_cast<int>(random() % 12);
      graph = test_support::RandomJoint(
          random, {.forward = forward,
                   .backward = 4 + static_cast<int>(random() % 12),
                   .has_rules = random() % 2 == 0});
    } while (!HasPlans());
  }

  bool HasPlans() const {
    const JointSimulator simulator(graph);
    try {
      simulator.Run(simulator.AllKept());
    } catch (const InputError&) {
      return false;
    }
    return true;
  }

  // Simulates random legal kept values; returns nothing if there were none.
  std::optional<JointRun> RunByChance() {
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (const RematValue& value : BuildRematProblem(graph).values)
      is_kept[value.buffer] = value.may_keep && random() % 2 == 0;
    try {
      return JointSimulator(graph).Run(is_kept);
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  std::mt19937 random;
  JointGraph graph;
};

bool HasPlan(const RematAnswer& answer) {
  return answer.status == SearchStatus::kOptimal ||
         answer.status == SearchStatus::kFeasible;
}

bool IsRematProven(const RematAnswer& answer) {
  return answer.status == SearchStatus::kOptimal ||
         answer.status == SearchStatus::kInfeasible;
}

RematAnswer SolveRemat(const JointGraph& graph, int64_t budget) {
  return SolveRemat(BuildRematProblem(graph), {.budget_bytes = budget});
}

LeastRematBudget Least(const JointGraph& graph) {
  return FindLeastRematBudget(BuildRematProblem(graph), {}, 0);
}

// Returns budgets from a byte less than the least one that a search found to
// the bytes that the step needs if all is kept.
std::vector<int64_t> RematBudgets(RematStep& step) {
  const int64_t least = Least(step.graph).bytes;
  const JointSimulator simulator(step.graph);
  const int64_t most =
      std::max(least, simulator.Run(simulator.AllKept()).peak_bytes);
  std::vector<int64_t> budgets = {least - 1, least, most};
  for (int k = 0; k < 2; ++k) {
    budgets.push_back(
        least + static_cast<int64_t>(step.random() %
                                     static_cast<uint64_t>(most - least + 1)));
  }
  std::ranges::sort(budgets);
  return budgets;
}

// Compares two answers to the same question, where the other's milliseconds are
// `times` as long.
void ExpectTheSameRemat(const RematAnswer& one, const RematAnswer& other,
                        double times = 1) {
  if (!IsRematProven(one) || !IsRematProven(other)) {
    // A bound holds for every plan, no matter which search found it.
    if (!HasPlan(one) || !HasPlan(other)) return;
    EXPECT_LE(one.bound_ms * times, other.run.recompute_ms * (1 + 1e-9));
    EXPECT_LE(other.bound_ms, one.run.recompute_ms * times * (1 + 1e-9));
    return;
  }
  ASSERT_EQ(one.status, other.status);
  EXPECT_NEAR(one.run.recompute_ms * times, other.run.recompute_ms,
              1e-8 * (std::min(1.0, times) + other.run.recompute_ms));
}

TEST(RematMetamorphic, MoreMemoryIsNeverWorse) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    std::optional<RematAnswer> last;
    for (const int64_t budget : RematBudgets(step)) {
      RematAnswer answer = SolveRemat(step.graph, budget);
      if (HasPlan(answer)) CheckRemat(step.graph, budget, answer.run);
      if (last) {
        ASSERT_NE(answer.status, SearchStatus::kInfeasible);
        EXPECT_LE(answer.bound_ms, last->run.recompute_ms * (1 + 1e-9));
        if (IsRematProven(answer)) {
          EXPECT_LE(answer.run.recompute_ms,
                    last->run.recompute_ms * (1 + 1e-9));
        }
      }
      if (HasPlan(answer)) last = std::move(answer);
    }
  }
}

TEST(RematMetamorphic, NothingFitsBelowTheLeast) {
  int proven = 0;
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    const RematStep step(k);
    const LeastRematBudget least = Least(step.graph);
    ASSERT_LE(least.bound_bytes, least.bytes);
    const JointRun run = JointSimulator(step.graph).Run(least.is_kept);
    EXPECT_EQ(run.peak_bytes, least.bytes);
    const RematAnswer at = SolveRemat(step.graph, least.bytes);
    EXPECT_NE(at.status, SearchStatus::kInfeasible);
    const RematAnswer below = SolveRemat(step.graph, least.bytes - 1);
    EXPECT_FALSE(HasPlan(below) && least.bound_bytes == least.bytes);
    if (least.bound_bytes == least.bytes && IsRematProven(below)) ++proven;
  }
  EXPECT_GE(proven * 10, Instances() * 9);
}

TEST(RematMetamorphic, ThePeakOfAPlanIsABudgetForIt) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    for (const int64_t budget : RematBudgets(step)) {
      const RematAnswer answer = SolveRemat(step.graph, budget);
      if (!HasPlan(answer)) continue;
      ASSERT_LE(answer.run.peak_bytes, budget);
      const RematAnswer second = SolveRemat(step.graph, answer.run.peak_bytes);
      ExpectTheSameRemat(answer, second);
    }
  }
}

JointGraph ScaledGraph(JointGraph graph, int64_t bytes, double ms) {
  graph.held_bytes *= bytes;
  for (graph::JointBuffer& buffer : graph.buffers) buffer.bytes *= bytes;
  for (JointNode& node : graph.nodes) {
    node.ms *= ms;
    node.scratch_bytes *= bytes;
  }
  return graph;
}

TEST(RematMetamorphic, UnitsOfBytesAndTimesDoNotMatter) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    const int64_t bytes = 1 + static_cast<int64_t>(step.random() % 1000000000);
    constexpr double kUnits[] = {1. / 1024, 3, 0x1p-40};
    const double ms = kUnits[step.random() % 3];
    const JointGraph scaled = ScaledGraph(step.graph, bytes, ms);
    for (const int64_t budget : RematBudgets(step)) {
      const int64_t more = static_cast<int64_t>(step.random()) % bytes;
      ExpectTheSameRemat(SolveRemat(step.graph, budget),
                         SolveRemat(scaled, budget * bytes + more), ms);
    }
  }
}

// One byte too little, out of more bytes than a solver's tolerances tell apart.
TEST(RematMetamorphic, NothingFitsAByteBelowWhatNoChoiceChanges) {
  JointGraph graph;
  graph.buffers = {{.name = "x", .bytes = 1'500'000'000'000}};
  graph.nodes = {{.name = "loss", .ms = 1, .reads = {0}}};
  EXPECT_EQ(SolveRemat(graph, 1'500'000'000'000).status,
            SearchStatus::kOptimal);
  EXPECT_EQ(SolveRemat(graph, 1'499'999'999'999).status,
            SearchStatus::kInfeasible);
}

// Renames and reorders buffers; reorders what a node reads and makes, and what
// is returned.
JointGraph RenamedGraph(JointGraph graph, std::mt19937& random) {
  std::vector<int32_t> place(graph.buffers.size());
  std::iota(place.begin(), place.end(), 0);
  std::ranges::shuffle(place, random);
  const auto move_all = [&](std::vector<int32_t>& buffers) {
    for (int32_t& b : buffers) b = place[b];
    std::ranges::shuffle(buffers, random);
  };
  std::vector<graph::JointBuffer> buffers(graph.buffers.size());
  for (size_t b = 0; b < place.size(); ++b) {
    buffers[place[b]] = graph.buffers[b];
    buffers[place[b]].name = "another" + std::to_string(b);
  }
  graph.buffers = std::move(buffers);
  for (JointNode& node : graph.nodes) {
    node.name = "n" + node.name;
    move_all(node.reads);
    move_all(node.makes);
  }
  move_all(graph.forward_outputs);
  move_all(graph.backward_outputs);
  return graph;
}

TEST(RematMetamorphic, NamesAndOrdersDoNotMatter) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    const JointGraph renamed = graph::ParseJointGraph(
        graph::ToJson(RenamedGraph(step.graph, step.random)), "renamed");
    for (const int64_t budget : RematBudgets(step))
      ExpectTheSameRemat(SolveRemat(step.graph, budget),
                         SolveRemat(renamed, budget));
  }
}

// Held bytes beside the buffers are like a larger budget.
TEST(RematMetamorphic, WhatIsHeldIsTakenFromTheBudget) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    JointGraph more = step.graph;
    const int64_t held_bytes = static_cast<int64_t>(step.random() % 100);
    more.held_bytes += held_bytes;
    for (const int64_t budget : RematBudgets(step))
      ExpectTheSameRemat(SolveRemat(step.graph, budget),
                         SolveRemat(more, budget + held_bytes));
  }
}

// A plan that is near enough is no better than the best one, its bound no
// higher.
TEST(RematMetamorphic, GapsAreKept) {
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    const RematProblem problem = BuildRematProblem(step.graph);
    const double gap = static_cast<double>(step.random() % 100) / 100;
    for (const int64_t budget : RematBudgets(step)) {
      const RematAnswer best = SolveRemat(problem, {.budget_bytes = budget});
      const RematAnswer near =
          SolveRemat(problem, {.budget_bytes = budget, .limits = {.gap = gap}});
      EXPECT_EQ(HasPlan(best), HasPlan(near));
      if (!HasPlan(best) || !HasPlan(near)) continue;
      EXPECT_LE(near.bound_ms, best.run.recompute_ms * (1 + 1e-9));
      EXPECT_GE(near.run.recompute_ms, best.bound_ms * (1 - 1e-9));
      if (near.stopped_by == solver::StoppedBy::kGap) {
        EXPECT_GE(near.bound_ms + 1e-9, (1 - gap) * near.run.recompute_ms);
      }
    }
  }
}

// Random legal plans.
TEST(RematMetamorphic, NoPlanByChanceBeatsABound) {
  int fitting = 0;
  for (int k = First(); k < End() && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    const std::vector<int64_t> budgets = RematBudgets(step);
    const int64_t least = Least(step.graph).bound_bytes;
    std::vector<RematAnswer> answers;
    for (const int64_t budget : budgets)
      answers.push_back(SolveRemat(step.graph, budget));
    for (int sample = 0; sample < 20; ++sample) {
      const std::optional<JointRun> run = step.RunByChance();
      if (!run) continue;
      EXPECT_GE(run->peak_bytes, least);
      for (size_t i = 0; i < budgets.size(); ++i) {
        if (run->peak_bytes > budgets[i]) continue;
        ++fitting;
        EXPECT_NE(answers[i].status, SearchStatus::kInfeasible);
        EXPECT_GE(run->recompute_ms, answers[i].bound_ms * (1 - 1e-9));
      }
    }
  }
  EXPECT_GT(fitting, Instances());
}

// CBC's bound holds; and if the simulation of its plan agrees with CBC, that is
// the optimum.
TEST(RematMetamorphic, AgreesWithCbc) {
  int compared = 0;
  int equal = 0;
  const int last = First() + (Instances() + 1) / 2;
  for (int k = First(); k < last && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    RematStep step(k);
    const RematProblem problem = BuildRematProblem(step.graph);
    for (const int64_t budget : RematBudgets(step)) {
      const RematAnswer answer = SolveRemat(problem, {.budget_bytes = budget});
      if (!IsRematProven(answer)) continue;
      const test_support::RematMilp milp =
          test_support::BuildRematMilp(problem, budget);
      const solver::MilpSolution by_cbc = solver::SolveWithCbc(milp.program);
      ++compared;
      if (by_cbc.status == solver::MilpStatus::kInfeasible) {
        EXPECT_EQ(answer.status, SearchStatus::kInfeasible);
        continue;
      }
      ASSERT_EQ(by_cbc.status, solver::MilpStatus::kOptimal);
      const JointRun run =
          JointSimulator(step.graph).Run(KeptBy(milp, problem, by_cbc.x));
      const bool is_plan = run.peak_bytes <= budget;
      if (answer.status == SearchStatus::kInfeasible) {
        EXPECT_FALSE(is_plan);
        continue;
      }
      const double ms = answer.run.recompute_ms;
      EXPECT_LE(by_cbc.objective, ms + 1e-6 * (1 + ms));
      if (is_plan) {
        EXPECT_LE(ms, run.recompute_ms + 1e-9);
      }
      const bool is_what_it_says =
          is_plan && run.recompute_ms <= by_cbc.objective + 1e-6;
      if (!is_what_it_says) continue;
      EXPECT_NEAR(ms, by_cbc.objective, 1e-6 * (1 + ms));
      ++equal;
    }
  }
  RecordProperty("compared", compared);
  RecordProperty("equal", equal);
  EXPECT_GE(compared, Instances());
  EXPECT_GE(equal * 4, compared);
}

}  // namespace
}  // namespace acplan::problems
