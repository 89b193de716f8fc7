#include "problems/length_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "problems/ask.h"
#include "problems/check/table_rules.h"
#include "tests/problems/trace/decision_enumeration.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::ThrowsMessage;

constexpr int64_t kBlock = 4096;

// Three traces of a random step. Bytes grow with the length; so do run-times, those of
// each operator at a rate of its own.
std::vector<graph::TraceOfLength> StretchedSteps(unsigned seed) {
  std::mt19937 random(seed);
  const graph::Trace step =
      test_support::RandomStep(random, {.blocks_least = 2,
                                        .blocks_most = 2,
                                        .operators_least = 1,
                                        .operators_most = 3});
  std::uniform_int_distribution<int64_t> blocks(1, 2000);
  std::uniform_real_distribution<double> rate(0, 1);
  std::vector<int64_t> sizes;
  std::vector<double> rates;
  for (size_t k = 0; k < step.storages.size(); ++k) {
    sizes.push_back(blocks(random) * kBlock);
  }
  for (size_t k = 0; k < step.operators.size(); ++k) {
    rates.push_back(rate(random));
  }
  std::vector<graph::TraceOfLength> traces;
  for (const int64_t length : {10, 20, 30}) {
    graph::Trace trace = step;
    for (const graph::StorageId s : trace.storages.ids()) {
      graph::TraceStorage& storage = trace.storages[s];
      const bool is_of_model =
          storage.category == graph::StorageCategory::kParameter ||
          storage.category == graph::StorageCategory::kBuffer ||
          storage.category == graph::StorageCategory::kGradient ||
          storage.category == graph::StorageCategory::kOptimizer;
      storage.bytes = is_of_model || storage.born == graph::kNone
                          ? kBlock
                          : sizes[static_cast<size_t>(s)] * length / 10;
    }
    for (const graph::OperatorId op : trace.operators.ids()) {
      trace.operators[op].runtime_ms +=
          rates[static_cast<size_t>(op)] * static_cast<double>(length);
    }
    traces.push_back({.length = length,
                      .name = std::to_string(length) + ".json",
                      .trace = std::move(trace)});
  }
  return traces;
}

LengthQuestion QuestionAbout(const LengthProblem& problem, int64_t memory,
                             int64_t most_plans) {
  LengthQuestion question{.problem = &problem, .most_plans = most_plans};
  question.options.memory.model = MemoryModel::kTrace;
  question.options.may_skip = true;
  question.device = {
      .memory_bytes = memory,
      .settings = {{.allocator = "native",
                    .config = graph::ParseAllocatorConfig("native", "")},
                   {.allocator = "expandable_segments:True",
                    .config = graph::ParseAllocatorConfig(
                        "expandable_segments:True", "")}},
      .patience = 1e4};
  for (const graph::TraceOfLength& length : problem.lengths) {
    question.switches.push_back(length.length);
  }
  return question;
}

// A plan at each length.
struct PlanAtLengths {
  std::vector<int64_t> peak_bytes;
  std::vector<double> ms;
};

// Returns every plan of the longest step, at all lengths; nothing if there are too many.
std::optional<std::vector<PlanAtLengths>> AllPlans(const LengthProblem& problem,
                                                   const PlanOptions& options) {
  const graph::Trace& longest = problem.lengths.back().trace;
  const graph::Profile profile = graph::Aggregate(longest);
  const graph::ModuleTree tree(profile);
  const Families families = BuildFamilies({.profile = &profile,
                                           .tree = &tree,
                                           .options = options,
                                           .trace = &longest});
  const auto enumerated = EnumerateDecisions(
      std::get<TraceProblem>(families.front().problem.formulation), {});
  if (!enumerated) return std::nullopt;
  std::vector<PlanAtLengths> plans;
  for (const TracePlans::Plan& plan : enumerated->plans) {
    PlanAtLengths at;
    for (const graph::TraceOfLength& length : problem.lengths) {
      const graph::Simulation simulation =
          graph::Simulate(length.trace, plan.modules);
      at.peak_bytes.push_back(simulation.peak_bytes);
      at.ms.push_back(simulation.recompute_ms);
    }
    plans.push_back(std::move(at));
  }
  return plans;
}

// Returns the least mean recomputation of tables of at most so many plans whose live bytes
// fit, from length `first` on.
double LeastMs(const LengthProblem& problem,
               const std::vector<PlanAtLengths>& plans, int64_t bytes,
               int64_t most_plans, size_t first = 0) {
  const size_t lengths = problem.lengths.size();
  if (first == lengths) return 0;
  double least = std::numeric_limits<double>::infinity();
  if (most_plans == 0) return least;
  for (size_t last = first; last < lengths; ++last) {
    const double rest =
        LeastMs(problem, plans, bytes, most_plans - 1, last + 1);
    for (const PlanAtLengths& plan : plans) {
      if (plan.peak_bytes[last] > bytes) continue;
      double ms = rest;
      for (size_t k = first; k <= last; ++k) {
        ms += plan.ms[k] * static_cast<double>(problem.counts[k]) /
              static_cast<double>(problem.Batches());
      }
      least = std::min(least, ms);
    }
  }
  return least;
}

const std::vector<graph::LengthStep>& Order() {
  static const std::vector<graph::LengthStep> order = {
      {20}, {10}, {30}, {10}, {20, true}, {30}, {20}, {10}, {10}};
  return order;
}

// The bound is that of an enumeration of all tables, and so is the table wherever
// the allocator loses nothing.
TEST(LengthPlansTest, TablesAreAsGoodAsAnyThatIsEnumerated) {
  int tables = 0, optimal = 0, recomputing = 0, smaller = 0;
  for (unsigned seed = 0; tables < Repetitions(60) && seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const LengthProblem problem =
        MakeLengthProblem(StretchedSteps(seed), Order());
    LengthQuestion question = QuestionAbout(problem, 1, 1);
    const auto plans = AllPlans(problem, question.options);
    if (!plans) continue;
    const int64_t unplanned = plans->front().peak_bytes.back();
    int64_t least = unplanned;
    for (const PlanAtLengths& plan : *plans) {
      least = std::min(least, plan.peak_bytes.back());
    }
    const int64_t memory = least + (unplanned - least) * (seed % 4) / 4 +
                           (int64_t{seed % 3} << 20);
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t most_plans : {1, 2, 3}) {
      question = QuestionAbout(problem, memory, most_plans);
      const double enumerated = LeastMs(problem, *plans, memory, most_plans);
      const LengthAnswer answer = AskForLengths(question);
      if (!answer.table) {
        EXPECT_FALSE(answer.is_infeasible);
        EXPECT_GT(answer.least_device_bytes.value_or(0), memory);
        continue;
      }
      const PlanTable& table = *answer.table;
      EXPECT_NEAR(table.bound_ms, enumerated, 1e-9);
      EXPECT_GE(table.recompute_ms, enumerated - 1e-9);
      EXPECT_LE(table.recompute_ms, before + 1e-9);
      EXPECT_LE(std::ssize(table.entries), most_plans);
      EXPECT_LE(table.device.reserved_bytes, memory);
      smaller += table.recompute_ms < before - 1e-9 && most_plans > 1 ? 1 : 0;
      before = table.recompute_ms;
      ++tables;
      optimal += table.recompute_ms <= enumerated + 1e-9 ? 1 : 0;
      recomputing += enumerated > 0 ? 1 : 0;
      const PlanTable reread = ParsePlanTable(ToJson(table), "table");
      EXPECT_EQ(ToJson(reread), ToJson(table));
      EXPECT_EQ(BrokenTableRule(problem, reread), std::nullopt);
    }
  }
  EXPECT_GT(tables, Enough(40));
  EXPECT_GT(optimal, Enough(20));
  EXPECT_GT(recomputing, Enough(20));
  EXPECT_GT(smaller, Enough(5));
}

// Returns a table that has several plans.
PlanTable SomeTable(const LengthProblem& problem) {
  const graph::Trace& longest = problem.lengths.back().trace;
  const int64_t memory =
      graph::Simulate(longest, {}).peak_bytes + (int64_t{40} << 20);
  return AskForLengths(QuestionAbout(problem, memory, 2)).table.value();
}

TEST(LengthPlansTest, FalseTablesAreFound) {
  const LengthProblem problem = MakeLengthProblem(StretchedSteps(3), Order());
  const PlanTable table = SomeTable(problem);
  ASSERT_EQ(BrokenTableRule(problem, table), std::nullopt);
  PlanTable wrong = table;
  wrong.recompute_ms += 1;
  EXPECT_THAT(BrokenTableRule(problem, wrong),
              Optional(HasSubstr("of recomputation for a batch")));
  wrong = table;
  wrong.device.reserved_bytes += 512;
  EXPECT_THAT(BrokenTableRule(problem, wrong),
              Optional(HasSubstr("bytes reserved; the run has")));
  wrong = table;
  wrong.memory_bytes = table.device.allocated_bytes;
  wrong.reserve_bytes = 0;
  EXPECT_THAT(BrokenTableRule(problem, wrong),
              Optional(HasSubstr("out of memory: the run of these batches")));
  wrong = table;
  wrong.entries.back().longest = 20;
  wrong.entries.erase(wrong.entries.begin(), wrong.entries.end() - 1);
  EXPECT_THAT(BrokenTableRule(problem, wrong),
              Optional(HasSubstr("ends at length 20, a batch has 30")));
  wrong = table;
  wrong.entries.back().plan.peak_bytes += 4096;
  EXPECT_THAT(BrokenTableRule(problem, wrong),
              Optional(HasSubstr("the plan up to length 30: ")));
}

TEST(LengthPlansTest, RefusesTracesOfSeveralModels) {
  std::vector<graph::TraceOfLength> traces = StretchedSteps(4);
  traces[1].trace.modules.begin()->fqn = "Other";
  EXPECT_THAT([&] { MakeLengthProblem(traces, Order()); },
              ThrowsMessage<InputError>(HasSubstr(
                  "20.json: expected a trace of the model and optimizer of "
                  "10.json: one has the module")));
  traces = StretchedSteps(4);
  traces[1].length = 10;
  EXPECT_THAT([&] { MakeLengthProblem(traces, Order()); },
              ThrowsMessage<InputError>(HasSubstr(
                  "20.json: expected traces of different lengths, found 10")));
}

TEST(LengthPlansTest, RefusesOnePlanForStepsOfDifferentOperators) {
  std::vector<graph::TraceOfLength> traces = StretchedSteps(5);
  traces[0].trace.operator_names.push_back("aten.other.default");
  const LengthProblem problem = MakeLengthProblem(traces, Order());
  EXPECT_THAT([&] { AskForLengths(QuestionAbout(problem, 1 << 30, 1)); },
              ThrowsMessage<InputError>(
                  "plans: the steps up to length 10 and from 20 on run "
                  "different operators: expected more plans than 1"));
  EXPECT_TRUE(AskForLengths(QuestionAbout(problem, 1 << 30, 2)).table);
}

}  // namespace
}  // namespace acplan::problems
