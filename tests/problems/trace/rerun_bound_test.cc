#include "problems/trace/rerun_bound/rerun_bound.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "problems/plan/trace_memory.h"
#include "problems/trace/rerun_bound/rerun_problem.h"
#include "problems/trace/trace_search.h"
#include "solver/lp_solver.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/random_step.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::problems {
namespace {

using namespace graph::trace_ids;

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::Trace;
using test_support::Repetitions;

graph::IndexedVector<OperatorId, int64_t> OneDevice(const Trace& trace) {
  return graph::IndexedVector<OperatorId, int64_t>(trace.operators.size(), 0);
}

double BoundMs(const Trace& trace, int64_t budget_bytes) {
  const RerunBound bound = BoundReruns(trace, OneDevice(trace), budget_bytes);
  EXPECT_FALSE(bound.is_loose);
  return bound.ms;
}

double AtMost(double ms) { return ms * (1 + 1e-9) + 1e-12; }

class RerunBoundTest : public ::testing::TestWithParam<TraceCaseKind> {};
INSTANTIATE_TEST_SUITE_P(RandomSteps, RerunBoundTest,
                         ::testing::ValuesIn(TraceCaseKinds()),
                         [](const auto& test) { return test.param.name; });

// Compares the bound with plans at each budget at which another plan fits.
TEST_P(RerunBoundTest, IsNoMoreThanAnyPlan) {
  int cases = 0;
  int met_bounds = 0;
  const auto goes_on = [&] {
    return cases < Repetitions(60) || (met_bounds == 0 && cases < 60);
  };
  for (unsigned seed = 0; goes_on(); ++seed) {
    SCOPED_TRACE(seed);
    const TraceCase c(GetParam(), seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, 1000);
    if (!plans || plans->plans.size() < 2) continue;
    ++cases;
    std::map<int64_t, double> least_ms;  // by peak
    for (const TracePlans::Plan& plan : plans->plans) {
      double& ms = least_ms.try_emplace(plan.peak_bytes, plan.recompute_ms)
                       .first->second;
      ms = std::min(ms, plan.recompute_ms);
    }
    double before = std::numeric_limits<double>::infinity();
    for (const auto& [peak, ms] : least_ms) {
      const double bound = BoundMs(c.trace, peak);
      ASSERT_LE(bound, AtMost(ms)) << "budget " << peak;
      ASSERT_LE(bound, before * (1 + 1e-4)) << "budget " << peak;
      before = std::min(bound, before);
      met_bounds += ms > 0 && bound > ms * .5 ? 1 : 0;
    }
  }
  EXPECT_GT(met_bounds, 0);
}

// Returns units inside units, with policies of all kinds.
std::vector<CheckpointedModule> RandomUnits(
    const Trace& trace, const graph::NeedDrivenPolicies& need_driven,
    std::mt19937& random) {
  std::vector<CheckpointedModule> units;
  for (const graph::ModuleId m : trace.modules.ids()) {
    std::set<int32_t> lengths;
    for (const graph::TraceCall& call : trace.calls) {
      if (call.module == m) lengths.insert(call.OperatorCount());
    }
    if (lengths.empty() || random() % 2 == 0) continue;
    CheckpointedModule unit{.module = m};
    const auto kind = random() % 4;
    if (kind > 0 && lengths.size() == 1) {
      const auto saved_of_ten = random() % 10;
      std::vector<graph::Flag> saves(*lengths.begin());
      for (graph::Flag& is_saved : saves) {
        is_saved = random() % 10 < saved_of_ten;
      }
      if (kind > 1) {
        unit = need_driven.PolicyFor(m, saves);
      } else {
        for (const bool is_saved : saves) {
          unit.decisions.push_back(!is_saved && random() % 4 == 0
                                       ? OperatorDecision::kSkip
                                       : graph::SaveOrRecompute(is_saved));
        }
      }
    }
    units.push_back(std::move(unit));
  }
  return units;
}

// Returns how many plans with units the simulator accepted.
int CheckRandomPlans(const Trace& trace, int plans, std::mt19937& random) {
  const graph::NeedDrivenPolicies need_driven(trace);
  const graph::Simulator simulator(trace);
  int accepted = 0;
  for (int k = 0; k < plans; ++k) {
    const std::vector<CheckpointedModule> units =
        RandomUnits(trace, need_driven, random);
    graph::Simulation use;
    try {
      use = simulator.Simulate(units);
    } catch (const InputError&) {
      continue;
    }
    if (use.recompute_ms == 0) continue;
    ++accepted;
    EXPECT_LE(BoundMs(trace, use.peak_bytes), AtMost(use.recompute_ms))
        << "plan " << k;
  }
  return accepted;
}

TEST_P(RerunBoundTest, IsNoMoreThanUnitsInsideUnits) {
  int accepted = 0;
  for (int seed = 0; seed < Repetitions(60) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace = test_support::RandomStep(random, GetParam().step);
    accepted += CheckRandomPlans(trace, 40, random);
  }
  EXPECT_GT(accepted, Repetitions(100));
}

// If operators read storages that no call is said to be given, the simulator
// does not hold them for units.
TEST_P(RerunBoundTest, IsNoMoreWhereArgumentsAreNotTold) {
  int accepted = 0;
  for (int seed = 0; seed < Repetitions(40) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Trace trace = test_support::RandomStep(random, GetParam().step);
    for (graph::TraceCall& call : trace.calls) {
      const auto is_not_told = [&](auto) { return random() % 2 == 0; };
      std::erase_if(call.arguments, is_not_told);
      std::erase_if(call.inputs, [&](graph::StorageId s) {
        const bool is_by_position = std::ranges::any_of(
            call.arguments,
            [&](graph::TensorId t) { return trace.tensors[t].storage == s; });
        return !is_by_position && is_not_told(s);
      });
    }
    accepted += CheckRandomPlans(trace, 40, random);
  }
  EXPECT_GT(accepted, Repetitions(100));
}

// Traces of no program: all that the simulator accepts.
TEST(RerunBoundOfAnyTraceTest, IsNoMoreThanAnyPlan) {
  int accepted = 0;
  for (int seed = 0; seed < Repetitions(400) && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace =
        test_support::RandomTrace(random, 5 + static_cast<int>(random() % 40));
    accepted += CheckRandomPlans(trace, 20, random);
  }
  EXPECT_GT(accepted, Repetitions(100));
}

// Returns the optimum of the relaxation as a linear program, with memory at all
// operators; infinity if it has no solution.
double LinearOptimum(const RerunProblem& problem, double budget_bytes) {
  constexpr double kUnit = 512;
  solver::Milp program;
  for (const double ms : problem.runtime_ms) {
    program.AddColumn({.upper = 1, .cost = ms});
  }
  for (const OperatorId k : problem.held_bytes.ids()) {
    const auto reruns =
        std::min(IndexOf(k), static_cast<int32_t>(problem.runtime_ms.size()));
    const auto first = static_cast<int>(program.columns.size());
    for (int32_t op = 0; op < reruns; ++op) {
      program.AddColumn({.upper = 1});
      program.AddRow({.lower = 0, .terms = {{op, 1}, {first + op, -1}}});
    }
    solver::Milp::Row bytes{
        .upper = (budget_bytes - static_cast<double>(problem.held_bytes[k])) /
                 kUnit};
    for (const RerunProblem::Value& value : problem.values) {
      if (value.writers.front() >= k || value.IsHeldAt(k)) continue;
      const int live = program.AddColumn({.upper = 1});
      bytes.terms.push_back({live, static_cast<double>(value.bytes) / kUnit});
      for (const OperatorId w : value.writers) {
        if (w >= k) continue;
        if (value.IsAskedAfter(k)) {
          program.AddRow(
              {.lower = 1, .terms = {{live, 1}, {first + IndexOf(w), 1}}});
          continue;
        }
        for (const OperatorId reader : value.readers) {
          if (reader >= k) continue;
          program.AddRow({.lower = 0,
                          .terms = {{live, 1},
                                    {first + IndexOf(w), 1},
                                    {first + IndexOf(reader), -1}}});
        }
      }
    }
    program.AddRow(std::move(bytes));
  }
  const solver::LpSolution solution = solver::SolveLp(program);
  return solution.status == solver::LpStatus::kInfeasible
             ? std::numeric_limits<double>::infinity()
             : solution.objective;
}

// Returns the live bytes at an operator if nothing runs again, value by value.
int64_t LiveBytesAt(const RerunProblem& problem, OperatorId op) {
  int64_t bytes = problem.held_bytes[op];
  for (const RerunProblem::Value& value : problem.values) {
    const bool is_kept = value.writers.front() < op && value.IsAskedAfter(op) &&
                         !value.IsHeldAt(op);
    if (is_kept) bytes += value.bytes;
  }
  return bytes;
}

TEST_P(RerunBoundTest, IsTheOptimumOfTheRelaxation) {
  int above_zero = 0;
  for (int seed = 0; seed < Repetitions(12) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace = test_support::RandomStep(random, GetParam().step);
    const RerunProblem problem = BuildRerunProblem(trace, OneDevice(trace));
    int64_t least = 0;
    for (const int64_t bytes : problem.held_bytes) {
      least = std::max(least, bytes);
    }
    const auto bytes_at = problem.BytesWithoutReruns();
    const int64_t most = *std::ranges::max_element(bytes_at);
    for (const OperatorId k : bytes_at.ids()) {
      ASSERT_EQ(bytes_at[k], LiveBytesAt(problem, k)) << IndexOf(k);
    }
    EXPECT_LE(most, graph::Simulate(trace, {}).peak_bytes);
    for (const int64_t budget : {least - 512, least, least + (most - least) / 3,
                                 least + (most - least) * 2 / 3, most}) {
      if (budget <= 0) continue;
      const double bound = BoundMs(trace, budget);
      const auto bytes = static_cast<double>(budget);
      const double optimum = LinearOptimum(problem, bytes);
      if (std::isinf(optimum)) {
        EXPECT_TRUE(std::isinf(bound));
        continue;
      }
      ASSERT_LE(bound, optimum * (1 + 1e-6) + 1e-9) << "budget " << budget;
      // A mixture may exceed the budget by as much as rounding does.
      const double below = LinearOptimum(problem, bytes * (1 + 1.1e-4));
      ASSERT_GE(bound, below * (1 - 1e-4) - 1e-9) << "budget " << budget;
      above_zero += bound > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(above_zero, 0);
}

// A limit makes the bound no higher, and the answer says that it is loose.
TEST_P(RerunBoundTest, HoldsWhereALimitStrikes) {
  int loose = 0;
  for (int seed = 0; seed < Repetitions(40) || (loose == 0 && seed < 40);
       ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace = test_support::RandomStep(random, GetParam().step);
    const int64_t peak = graph::Simulate(trace, {}).peak_bytes;
    for (const int64_t budget : {peak * 6 / 10, peak * 8 / 10}) {
      const double ms = BoundMs(trace, budget);
      const RerunBound stopped =
          BoundReruns(trace, OneDevice(trace), budget, {.node_limit = 1});
      EXPECT_LE(stopped.ms, AtMost(ms));
      EXPECT_LE(stopped.cuts, 1);
      if (stopped.ms < ms * (1 - 1e-3)) {
        EXPECT_TRUE(stopped.is_loose);
        ++loose;
      }
    }
  }
  EXPECT_GT(loose, 0);
}

// Returns two operators, of 10 and 1 ms, whose results of 4 and 2 KiB backward
// asks for; the second reads the first's. Then the loss, of 512 bytes, and
// their backward.
Trace ChainOfTwo() {
  using enum graph::StorageCategory;
  Trace trace;
  trace.storages = {{4096, kActivation, 0_op, 5, 2},
                    {2048, kActivation, 1_op, 4, 2},
                    {512, kActivation, 2_op, 3, 3}};
  trace.operators.resize(5);
  trace.operators[0_op].runtime_ms = 10;
  trace.operators[1_op].runtime_ms = 1;
  trace.operators[1_op].reads = {0_s};
  for (const OperatorId op : graph::OperatorsIn(0, 3)) {
    trace.operators[op].creates = {graph::StorageId{IndexOf(op)}};
  }
  trace.saved = {{.storage = 0_s,
                  .packed = 1,
                  .unpacked = 4,
                  .local_end = 5,
                  .released = 5},
                 {.storage = 1_s,
                  .packed = 2,
                  .unpacked = 3,
                  .local_end = 4,
                  .released = 4}};
  trace.forward_end = 3;
  trace.backward_end = 5;
  return trace;
}

// While the loss runs, 6656 bytes are live if nothing runs again, and while the
// second operator does, 6144 in every schedule. To save a quarter of its bytes
// at the loss, a quarter of the second operator runs again, which needs the
// result of the first. Without both, 512 remain.
TEST(RerunBoundExampleTest, IsWhatItSays) {
  const Trace trace = ChainOfTwo();
  EXPECT_EQ(BoundMs(trace, 6656), 0);
  EXPECT_NEAR(BoundMs(trace, 6144), .25, 1e-6);
  EXPECT_EQ(BoundMs(trace, 6143), std::numeric_limits<double>::infinity());
  // With 2 KiB more for everything except the loss.
  EXPECT_NEAR(BoundReruns(trace, {-2560, -2560, 0, -2560, -2560}, 4608, {}).ms,
              1, 1e-6);
  EXPECT_NEAR(BoundReruns(trace, {-2560, -2560, 0, -2560, -2560}, 3584, {}).ms,
              1 + 10 * .25, 1e-6);
}

Trace BundledTrace(const std::string& name) {
  return graph::ReadTrace(ACPLAN_DATA_DIR "/traces/" + name + ".json.gz");
}

class BoundOfBundledTraceTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Traces, BoundOfBundledTraceTest,
    ::testing::Values("bert_base", "gpt2_small", "gpt2_small_autocast",
                      "gpt2_tiny", "llama3_8b", "mixtral_4_layers", "resnet50",
                      "resnet50_autocast", "swin_tiny", "t5_small", "vit_base"),
    [](const auto& test) { return std::string(test.param); });

TEST_P(BoundOfBundledTraceTest, IsNoMoreThanThePlan) {
  const Trace trace = BundledTrace(GetParam());
  const graph::Profile profile = graph::Aggregate(trace);
  const graph::ModuleTree tree(profile);
  const TraceProblem problem = BuildTraceProblem(trace, profile, tree, {});
  const RerunProblem schedules = BuildRerunProblem(trace, OneDevice(trace));
  const int64_t floor = *std::ranges::max_element(schedules.held_bytes);
  const int64_t peak = graph::Simulate(trace, {}).peak_bytes;
  int plans = 0;
  for (const int percent : {90, 80, 60, 40, 20}) {
    const int64_t budget = floor + (peak - floor) * percent / 100;
    const TraceSolution solution =
        SolveTraceProblem(problem, budget, {.time_limit_s = .2, .gap = .1});
    if (solution.use.steps.empty()) continue;
    ++plans;
    EXPECT_LE(BoundMs(trace, budget), AtMost(solution.use.recompute_ms))
        << "budget " << budget;
  }
  EXPECT_GT(plans, 0);
}

// Results of HiGHS for the relaxation as one linear program, with memory counted
// at all operators at once, to four digits.
TEST(BoundOfBundledTracesTest, IsThatOfOtherForms) {
  const auto expect =
      [](const std::string& name,
         const std::vector<std::pair<int64_t, double>>& known_bounds) {
        const Trace trace = BundledTrace(name);
        for (const auto& [budget, ms] : known_bounds) {
          EXPECT_NEAR(BoundMs(trace, budget), ms, 6e-4)
              << name << " " << budget;
        }
      };
  expect("t5_small", {{4362681344, .6598},
                      {3898741760, 1.5419},
                      {3434802176, 6.3168},
                      {2970862592, 15.5310}});
  expect("bert_base", {{8495524761, 1.4537},
                       {7537935667, 3.4362},
                       {6580346572, 25.9373},
                       {5622757478, 49.8438}});
  expect("resnet50",
         {{1511276748, .2572}, {1323749785, .5732}, {1136222822, 1.0761}});
}

}  // namespace
}  // namespace acplan::problems
