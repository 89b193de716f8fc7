#include "problems/trace/relaxation/need_milp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/simulation.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/model/module_solution.h"
#include "problems/trace/relaxation/relaxation.h"
#include "problems/trace/relaxation/witnesses.h"
#include "solver/cbc_solver.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using solver::MilpStatus;
using solver::SearchStatus;
using test_support::Repetitions;

constexpr int kRelaxedSteps = 8;
constexpr int64_t kMostPlansOfStep = 1000;

class RelaxationsByCbc : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, RelaxationsByCbc,
                         ::testing::ValuesIn(TraceCaseKinds()),
                         [](const auto& test) { return test.param.name; });

// The kinds of relaxations.
enum class Relaxed { kNeedsNoUnits, kNeedsUnits, kInfeasible };

// Expects that CBC's figures for its policies are true.
void ExpectItsPlan(const TraceProblem& problem, const NeedMilp& form,
                   const solver::MilpSolution& by_cbc) {
  try {
    const graph::Simulation use =
        problem.simulator.Simulate(UnitsOf(problem, form, by_cbc.x));
    EXPECT_NEAR(use.recompute_ms, by_cbc.objective,
                1e-6 * (1 + use.recompute_ms));
  } catch (const InputError&) {
    // A relaxation may use policies that PyTorch refuses.
  }
}

// Expects that both engines agree.
Relaxed Solved(const TraceProblem& problem, const Witnesses& witnesses,
               const std::vector<Decision>& decisions, int64_t budget) {
  TraceRelaxation relaxation = Relax(problem, witnesses, decisions);
  ModuleProblem& relaxed = relaxation.joint.relaxed;
  relaxed.budget_bytes = static_cast<double>(budget);
  const ModuleSolution by_labels = SolveJointByLabels(relaxation.joint);
  const NeedMilp form = ToMilp(problem, relaxation,
                               ChoicesOfCalls(problem, witnesses, decisions));
  const solver::MilpSolution by_cbc = solver::SolveWithCbc(form.milp);
  if (relaxed.fixed_bytes > relaxed.budget_bytes ||
      by_cbc.status == MilpStatus::kInfeasible) {
    EXPECT_EQ(by_labels.status, SearchStatus::kInfeasible);
    return Relaxed::kInfeasible;
  }
  EXPECT_EQ(by_cbc.status, MilpStatus::kOptimal);
  EXPECT_EQ(by_labels.status, SearchStatus::kOptimal);
  EXPECT_NEAR(by_labels.ms, by_cbc.objective, 1e-6 * (1 + by_labels.ms));
  if (problem.may_skip && !problem.has_repeated_calls) {
    ExpectItsPlan(problem, form, by_cbc);
  }
  return by_labels.units.empty() ? Relaxed::kNeedsNoUnits
                                 : Relaxed::kNeedsUnits;
}

TEST_P(RelaxationsByCbc, AreThoseOfLabels) {
  std::map<Relaxed, int> count;
  int steps = 0;
  const auto goes_on = [&] {
    return steps < Repetitions(kRelaxedSteps) ||
           (count[Relaxed::kNeedsUnits] == 0 && steps < kRelaxedSteps);
  };
  for (unsigned seed = 0; goes_on() && !HasFailure(); ++seed) {
    const TraceCase c(GetParam(), seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, kMostPlansOfStep);
    if (!plans || plans->plans.size() < 2) continue;
    ++steps;
    std::mt19937 random(seed + 6);
    for (int k = 0; k < 4; ++k) {
      SCOPED_TRACE(fmt::format("seed {}, round {}", seed, k));
      const TracePlans::Plan& plan =
          plans->plans[random() % plans->plans.size()];
      const std::vector<Decision> decisions =
          RandomDecisions(c.problem, plan, random);
      const Witnesses witnesses =
          k % 2 == 0 ? FirstWitnesses(c.problem)
                     : RandomWitnesses(c.problem, decisions, random);
      const auto less = static_cast<int64_t>(random() % 3 * 512);
      ++count[Solved(c.problem, witnesses, decisions, plan.peak_bytes - less)];
    }
  }
  RecordProperty("with_units", count[Relaxed::kNeedsUnits]);
  RecordProperty("infeasible", count[Relaxed::kInfeasible]);
  EXPECT_GT(count[Relaxed::kNeedsUnits], 0);
}

}  // namespace
}  // namespace acplan::problems
