#include "problems/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "problems/planner.h"
#include "tests/problems/enumeration.h"
#include "tests/support/asked_plan.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::Not;

void ExpectEqual(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.budget_bytes, b.budget_bytes);
  EXPECT_EQ(a.reserve_bytes, b.reserve_bytes);
  EXPECT_EQ(a.memory.model, b.memory.model);
  EXPECT_EQ(a.memory.world_size, b.memory.world_size);
  EXPECT_EQ(a.memory.without_states, b.memory.without_states);
  EXPECT_EQ(a.granularity, b.granularity);
  EXPECT_EQ(a.tradeoff, b.tradeoff);
  EXPECT_EQ(a.status, b.status);
  EXPECT_EQ(a.limit, b.limit);
  EXPECT_EQ(a.recompute_ms, b.recompute_ms);
  EXPECT_EQ(a.bound_ms, b.bound_ms);
  EXPECT_EQ(a.gap, b.gap);
  EXPECT_EQ(a.overhead, b.overhead);
  EXPECT_EQ(a.any_schedule, b.any_schedule);
  EXPECT_EQ(a.times_off, b.times_off);
  EXPECT_EQ(a.time_errors, b.time_errors);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.offload, b.offload);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.peak_module, b.peak_module);
  EXPECT_EQ(a.modules, b.modules);
  EXPECT_EQ(a.minimum_budget_bytes, b.minimum_budget_bytes);
  EXPECT_EQ(a.baseline, b.baseline);
  EXPECT_EQ(a.solver, b.solver);
}

Plan FullPlan() {
  Plan plan;
  plan.model = "a \"model\"\n";
  plan.budget_bytes = (int64_t{1} << 40) + 1;
  plan.reserve_bytes = 12345;
  plan.memory = {
      .model = MemoryModel::kSnapshot, .world_size = 8, .without_states = true};
  plan.granularity = "operator";
  plan.tradeoff = "pareto";
  plan.status = PlanStatus::kFeasible;
  plan.limit = "time";
  plan.recompute_ms = 1.0 / 3;
  plan.bound_ms = 0.1;
  plan.gap = 0.7;
  plan.overhead = std::sqrt(2) / 100;
  plan.any_schedule = {.bound_ms = 0.05, .distance = 0.85, .is_loose = true};
  plan.times_off = {
      .factors = {1.25, 2, 1, 1.1, 1.5},
      .by_kind = {.upper = {.step = .1 / 3, .recomputation = .25},
                  .lower = WorstRegret{.step = .01, .recomputation = .2}},
      .by_operator = {.upper = {.step = .5}, .lower = WorstRegret{.step = .3}},
      .worst_kinds = graph::ByKind<double>{1.25, 0, .8, 1.25, .8},
      .least_step = .005};
  plan.time_errors = {
      .median = .07,
      .ninety = .3,
      .ninety_of_kinds = graph::ByKind<double>{.1, .2, 0, .3, .4}};
  plan.host = {.baseline_ms = 1.0 / 7,
               .ms = 2.0 / 7,
               .device_ms = 2.2 / 7,
               .step_ms = 3.0 / 7,
               .least_step_ms = 2.5 / 7};
  plan.offload = {.rates = graph::BothWays(25e9),
                  .host_memory_bytes = 1 << 20,
                  .host_bytes = 77,
                  .sent_bytes = 88,
                  .storages = 3,
                  .stall_ms = 0.125};
  plan.peak_bytes = (int64_t{1} << 53) - 1;
  plan.peak_module = "a.b";
  plan.modules = {
      {.fqn = "a.b",
       .discard_ratio = 2.0 / 3,
       .memory_budget = 1 - 2.0 / 3,
       .discarded_bytes = 7,
       .recompute_ms = 0.2,
       .ops = {{.index = 0,
                .name = "mm",
                .decision = graph::OperatorDecision::kSave},
               {.index = 1,
                .name = "relu",
                .decision = graph::OperatorDecision::kRecompute},
               {.index = 2,
                .name = "gelu",
                .decision = graph::OperatorDecision::kSkip},
               {.index = 3,
                .name = "attention",
                .decision = graph::OperatorDecision::kSave,
                .results = std::vector<int32_t>{0, 2}},
               {.index = 4,
                .name = "norm",
                .decision = graph::OperatorDecision::kSave,
                .results = std::vector<int32_t>{}},
               {.index = 5,
                .name = "conv",
                .decision = graph::OperatorDecision::kOffload,
                .results = std::vector<int32_t>{1}}}},
      {.fqn = "a.c", .discard_ratio = 1, .memory_budget = 0, .ops = {}}};
  plan.baseline = {
      .peak_bytes = 99, .peak_module = "a", .runtime_ms = 1e-3 / 7};
  plan.solver = {
      .name = "labels", .seconds = 0.25, .nodes = 5, .rows = 6, .columns = 7};
  return plan;
}

TEST(PlanFile, RoundTripsInFull) {
  const Plan plan = FullPlan();
  ExpectEqual(ParsePlan(PlanToJson(plan), "plan"), plan);
}

TEST(PlanFile, SaysWhichUnitsDoNotStopEarly) {
  Plan plan = FullPlan();
  EXPECT_EQ(PlanToJson(plan).find("early_stop"), std::string::npos);
  plan.modules.front().stops_early = false;
  EXPECT_EQ(ParsePlan(PlanToJson(plan), "plan").modules, plan.modules);
}

TEST(PlanFile, SaysWhichArgumentsAreOffloaded) {
  Plan plan = FullPlan();
  EXPECT_EQ(PlanToJson(plan).find("offloaded_arguments"), std::string::npos);
  plan.modules.front().offloaded_arguments = {0, 2};
  EXPECT_EQ(ParsePlan(PlanToJson(plan), "plan").modules, plan.modules);
  plan.modules.front().offloaded_arguments = {2, 2};
  EXPECT_THROW(ParsePlan(PlanToJson(plan), "plan"), InputError);
}

TEST(PlanFile, RoundTripsWithoutAnAnswer) {
  Plan plan = FullPlan();
  plan.status = PlanStatus::kInfeasible;
  plan.modules.clear();
  plan.minimum_budget_bytes = int64_t{1} << 41;
  plan.limit.reset();
  plan.recompute_ms = plan.bound_ms = plan.gap = plan.overhead = 0;
  plan.peak_bytes = 0;
  plan.peak_module.clear();
  ExpectEqual(ParsePlan(PlanToJson(plan), "plan"), plan);
}

TEST(PlanFile, RoundTripsOnRandomProfiles) {
  for (unsigned seed = 0; seed < Repetitions(200); ++seed) {
    const graph::Profile profile = test_support::RandomProfile(seed);
    PlanOptions options{.granularity = Granularity::kModule,
                        .tradeoff = Tradeoff::kProfile};
    options.budget_bytes = std::max<int64_t>(
        1,
        static_cast<int64_t>(PeakOf(profile, {}, {}) / (1 + seed % 3 * 0.25)));
    const Plan plan =
        test_support::AskedPlan(profile, graph::ModuleTree(profile), options);
    ExpectEqual(ParsePlan(PlanToJson(plan), "plan"), plan);
  }
}

TEST(PlanFile, NeedsLittleOfTheAnswer) {
  const Plan plan = ParsePlan(
      R"({"format": "acplan.plan", "version": 1, "model": "m",
          "memory_model": "torch", "more": [],
          "modules": [{"fqn": "a", "discard_ratio": 0.25}]})",
      "plan");
  EXPECT_EQ(plan.model, "m");
  EXPECT_EQ(plan.status, PlanStatus::kFeasible);
  EXPECT_EQ(plan.memory.world_size, 1);
  ASSERT_EQ(plan.modules.size(), 1u);
  EXPECT_EQ(plan.modules[0].memory_budget, 0.75);
  EXPECT_TRUE(plan.modules[0].ops.empty());
}

struct BadPlan {
  std::string from, to;  // in the text of a good plan
  std::string complaint;
};

TEST(PlanFile, BadInputIsRefused) {
  const std::string good = PlanToJson(FullPlan());
  const std::vector<BadPlan> table = {
      {R"("acplan.plan")", R"("acplan.profile")", "format"},
      {R"("version": 1)", R"("version": 2)", "version"},
      {R"("model": "a)", R"("modell": "a)", "model"},
      {R"("budget_bytes": )", R"("budget_bytes": -)", "budget_bytes"},
      {R"("world_size": 8)", R"("world_size": 0)", "world_size"},
      {R"("memory_model": "snapshot")", R"("memory_model": "traced")",
       "memory_model"},
      {R"("without_states": true)", R"("without_states": 1)", "without_states"},
      {R"("status": "feasible")", R"("status": "good")", "status"},
      {R"("recompute_ms": 0.333)", R"("recompute_ms": -0.333)", "recompute_ms"},
      {R"("discard_ratio": 0.6)", R"("discard_ratio": 1.6)",
       "modules[0] (a.b).discard_ratio"},
      {R"("memory_budget": 0.3)", R"("memory_budget": -0.3)",
       "modules[0] (a.b).memory_budget"},
      {R"("discarded_bytes": 7)", R"("discarded_bytes": 7.5)",
       "modules[0] (a.b).discarded_bytes"},
      {R"("fqn": "a.c")", R"("fqn": "a.b")", "listed twice"},
      {R"("fqn": "a.c")", R"("fqn": 3)", "modules[1].fqn"},
      {R"("index": 1)", R"("index": -1)", "modules[0] (a.b).ops[1].index"},
      {R"("decision": "save")", R"("decision": "keep")",
       "modules[0] (a.b).ops[0].decision"},
      {R"("modules": [)", R"("modules": 3, "other": [)", "modules"},
      {R"("nodes": 5)", R"("nodes": "5")", "solver.nodes"},
      {"{", "", "plan"},
  };
  for (const BadPlan& bad : table) {
    SCOPED_TRACE(bad.to);
    std::string text = good;
    const size_t at = text.find(bad.from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, bad.from.size(), bad.to);
    try {
      ParsePlan(text, "my_plan.json");
      ADD_FAILURE() << "no error";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("my_plan.json"));
      EXPECT_THAT(error.what(), HasSubstr(bad.complaint));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  }
}

TEST(PlanFile, StatusesHaveNames) {
  EXPECT_EQ(ToString(PlanStatus::kOptimal), "optimal");
  EXPECT_EQ(ToString(PlanStatus::kFeasible), "feasible");
  EXPECT_EQ(ToString(PlanStatus::kInfeasible), "infeasible");
  EXPECT_EQ(ToString(PlanStatus::kNoPlan), "no_plan");
}

}  // namespace
}  // namespace acplan::problems
