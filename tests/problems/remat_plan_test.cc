#include "problems/remat_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "problems/schedule_plan.h"
#include "tests/graph/test_files.h"
#include "tests/support/random_joint.h"
#include "tests/support/random_schedule.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using nlohmann::json;
using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;

graph::JointGraph SmallJoint(unsigned seed) {
  std::mt19937 random(seed);
  return test_support::RandomJoint(random, {.has_rules = false});
}

TEST(RematPlan, FrontierNeverWorsens) {
  int points = 0;
  for (int seed = 0; seed < Repetitions(40); ++seed) {
    SCOPED_TRACE(seed);
    const graph::JointGraph graph = SmallJoint(seed);
    const std::vector<RematPlan> plans = RematFrontier(graph, 4, {});
    ASSERT_EQ(plans.size(), 4u);
    EXPECT_GE(plans.back().budget_bytes, RematBaseline(graph));
    EXPECT_EQ(plans.back().run->recompute_ms, 0);
    for (size_t p = 0; p < plans.size(); ++p) {
      ASSERT_EQ(plans[p].status, SearchStatus::kOptimal);
      EXPECT_LE(plans[p].run->peak_bytes, plans[p].budget_bytes);
      EXPECT_EQ(plans[p].baseline_peak_bytes, RematBaseline(graph));
      if (p == 0) continue;
      EXPECT_LE(plans[p].run->recompute_ms, plans[p - 1].run->recompute_ms);
      points += plans[p].budget_bytes > plans[p - 1].budget_bytes ? 1 : 0;
    }
    const json file = json::parse(RematFrontierToJson(plans, graph));
    ASSERT_EQ(file.at("points").size(), 4u);
    EXPECT_EQ(file.at("points")[0].at("recompute_ms"),
              plans[0].run->recompute_ms);
  }
  EXPECT_GT(points, Enough(40));
}

// The file has the plan's kept buffers, and evaluating it gives the plan's
// figures.
TEST(RematPlan, FileTellsWhatThePlanKeeps) {
  const graph::TemporaryFolder folder;
  const auto path = folder.path() / "plan.json";
  for (int seed = 0; seed < Repetitions(40); ++seed) {
    SCOPED_TRACE(seed);
    const graph::JointGraph graph = SmallJoint(seed);
    const RematPlan plan =
        PlanRemat(graph, {.budget_bytes = RematBaseline(graph)});
    ASSERT_TRUE(plan.run);
    const std::string text = RematToJson(plan, graph, /*has_memory=*/true);
    graph::PutBytes(path, text);
    const RematChoices choices = ReadRematChoices(path, graph);
    const std::vector<char>& is_kept = choices.is_kept;
    EXPECT_EQ(is_kept, plan.run->is_kept);
    const RematPlan evaluated = EvaluateRemat(graph, choices);
    EXPECT_TRUE(evaluated.is_given);
    EXPECT_EQ(evaluated.run->peak_bytes, plan.run->peak_bytes);
    EXPECT_EQ(evaluated.run->recompute_ms, plan.run->recompute_ms);
    const json file = json::parse(text);
    EXPECT_EQ(file.at("status"), "optimal");
    EXPECT_EQ(file.at("memory").size(), plan.run->steps.size());
    int64_t most = 0;
    for (const json& step : file.at("memory"))
      most = std::max(most, step.at("bytes").get<int64_t>());
    EXPECT_EQ(most, plan.run->peak_bytes);
    const json json_of_evaluated =
        json::parse(RematToJson(evaluated, graph, false));
    EXPECT_EQ(json_of_evaluated.at("status"), "given");
    EXPECT_FALSE(json_of_evaluated.contains("bound_ms"));
    EXPECT_FALSE(json_of_evaluated.contains("memory"));
  }
}

TEST(RematPlan, SaysTheLeastBudgetWhereNothingFits) {
  int complaints = 0;
  for (int seed = 0; seed < Repetitions(20); ++seed) {
    const graph::JointGraph graph = SmallJoint(seed);
    const RematPlan none = PlanRemat(graph, {.budget_bytes = 0});
    if (none.run) continue;
    ASSERT_EQ(none.status, SearchStatus::kInfeasible);
    ASSERT_TRUE(none.least);
    ++complaints;
    const json file = json::parse(RematToJson(none, graph, false));
    EXPECT_EQ(file.at("least_bytes"), none.least->bytes);
    EXPECT_FALSE(file.contains("saved"));
    EXPECT_TRUE(PlanRemat(graph, {.budget_bytes = none.least->bytes}).run);
    EXPECT_FALSE(
        PlanRemat(graph, {.budget_bytes = none.least->bound_bytes - 1}).run);
  }
  EXPECT_GT(complaints, Enough(10));
}

TEST(RematPlan, RefusesANameThatIsNoBuffer) {
  const graph::TemporaryFolder folder;
  const auto path = folder.path() / "plan.json";
  graph::PutBytes(path, R"({"saved": ["nobody"]})");
  try {
    ReadRematChoices(path, SmallJoint(1));
    ADD_FAILURE() << "was read";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("saved[0]: expected the name of a buffer"));
  }
}

TEST(SchedulePlan, FrontierNeverWorsens) {
  int fitting = 0;
  for (int seed = 0; seed < Repetitions(15); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    graph::ScheduleGraph graph =
        test_support::RandomSchedule(random, {.nodes = 5});
    graph.time_unit = "ms";
    const std::vector<SchedulePlan> plans = ScheduleFrontier(graph, 3, {});
    ASSERT_EQ(plans.size(), 3u);
    EXPECT_EQ(plans.back().budget_bytes, ScheduleBaseline(graph));
    ASSERT_TRUE(plans.back().run);
    EXPECT_EQ(plans.back().run->recompute_ms, 0);
    const json file = json::parse(ScheduleFrontierToJson(plans, graph));
    for (size_t p = 0; p < plans.size(); ++p) {
      const json& point = file.at("points")[p];
      EXPECT_EQ(point.at("budget_bytes"), plans[p].budget_bytes);
      EXPECT_EQ(point.contains("recomputed"), plans[p].run.has_value());
      if (!plans[p].run) {
        EXPECT_TRUE(p == 0 || !plans[p - 1].run);
        continue;
      }
      ++fitting;
      EXPECT_LE(plans[p].run->peak_bytes, plans[p].budget_bytes);
      if (p > 0 && plans[p - 1].run) {
        EXPECT_LE(plans[p].run->recompute_ms, plans[p - 1].run->recompute_ms);
      }
    }
    const SchedulePlan& last = plans.back();
    const json whole = json::parse(ScheduleToJson(last, graph, true));
    EXPECT_EQ(whole.at("nodes").size(), graph.nodes.size());
    EXPECT_EQ(whole.at("memory").size(), whole.at("sequence").size());
    EXPECT_EQ(whole.at("time_unit"), "ms");
    EXPECT_EQ(std::ranges::max(whole.at("memory").get<std::vector<int64_t>>()),
              last.run->peak_bytes);
  }
  EXPECT_GT(fitting, Enough(15));
}

}  // namespace
}  // namespace acplan::problems
