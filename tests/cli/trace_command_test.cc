#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";

// Commands that take a trace in place of a profile.
class TraceCommandTest : public CliTest {
 protected:
  json PlanAt(const std::string& budget,
              std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"plan", kTrace, "--budget", budget, "-o", "plan.json"});
    return AcplanJson(more);
  }
};

TEST_F(TraceCommandTest, PlansAreWhatTheSimulationSays) {
  const json baseline = AcplanJson({"simulate", kTrace})["baseline"];
  double least_ms = 0;
  for (const char* budget : {"90%", "75%", "60%", "min"}) {
    SCOPED_TRACE(budget);
    const json plan = PlanAt(budget);
    EXPECT_EQ(plan["status"], "optimal");
    EXPECT_EQ(plan["memory_model"], "trace");
    EXPECT_EQ(plan["baseline"]["peak_bytes"], baseline["peak_bytes"]);
    EXPECT_LE(plan["peak_bytes"], plan["budget_bytes"]);
    EXPECT_GE(plan["recompute_ms"], least_ms);
    least_ms = plan["recompute_ms"];
    const json simulated =
        AcplanJson({"simulate", kTrace, "plan.json"})["planned"];
    EXPECT_EQ(plan["peak_bytes"], simulated["peak_bytes"]);
    EXPECT_NEAR(plan["recompute_ms"], simulated["recompute_ms"],
                1e-9 * least_ms);
    EXPECT_EQ(AcplanJson({"check", kTrace, "plan.json", "--budget",
                          std::to_string(
                              plan["budget_bytes"].get<int64_t>())})["holds"],
              true);
  }
}

TEST_F(TraceCommandTest, NothingFitsBelowTheMinimum) {
  const json least = PlanAt("min");
  const int64_t bytes = least["budget_bytes"];
  EXPECT_EQ(least["peak_bytes"], bytes);
  const Outcome below =
      Acplan({"plan", kTrace, "--budget", std::to_string(bytes - 1)});
  EXPECT_EQ(below.exit_code, 3);
  EXPECT_THAT(below.out, HasSubstr("infeasible"));
  EXPECT_THAT(below.out, HasSubstr("the smallest feasible budget"));
}

TEST_F(TraceCommandTest, ThePlacesOfPeaksAreOperators) {
  EXPECT_THAT(AcplanOut({"plan", kTrace, "--budget", "99%"}),
              testing::ContainsRegex(
                  "\npeak at +(forward|backward|optimizer), aten\\."));
}

// The proof of Swin's least budget takes a while.
TEST_F(TraceCommandTest, AMinimumThatIsNotProvenIsPlannedAllTheSame) {
  constexpr char kSwin[] = ACPLAN_DATA_DIR "/traces/swin_tiny.json.gz";
  const Outcome outcome =
      Acplan({"plan", kSwin, "--budget", "min", "--time-limit", "0", "--json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("budget min: stopped by the time limit "
                                     "before the least budget was proven; "
                                     "some plan fits in "));
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["status"], "feasible");
  EXPECT_LE(plan["peak_bytes"], plan["budget_bytes"]);

  const Outcome frontier = Acplan(
      {"frontier", kSwin, "--points", "3", "--time-limit", "0", "--json"});
  EXPECT_EQ(frontier.exit_code, 0);
  const json answer = json::parse(frontier.out);
  EXPECT_LT(answer["minimum_budget_bound_bytes"],
            answer["fitting_budget_bytes"]);
  EXPECT_FALSE(answer.contains("minimum_budget_bytes"));
}

TEST_F(TraceCommandTest, NoUnitsMeansNone) {
  constexpr char kFreeUnit[] =
      ACPLAN_TEST_DATA_DIR "/traces/free_unit.trace.json.gz";
  const auto plan = [&](const char* units) {
    return Acplan(
        {"plan", kFreeUnit, "--budget", "40959", "--max-units", units});
  };
  EXPECT_EQ(plan("0").exit_code, 3);
  EXPECT_EQ(plan("1").exit_code, 0);
}

// 23 operators: the search for the least budget alone does not prove it.
TEST_F(TraceCommandTest, LeastBudgetsAreProvenBySearchesForPlansInLess) {
  const Outcome outcome =
      Acplan({"plan", ACPLAN_TEST_DATA_DIR "/traces/least_budget.trace.json.gz",
              "--budget", "min", "--decisions", "save,recompute", "--json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(json::parse(outcome.out)["budget_bytes"], 21504);
}

TEST_F(TraceCommandTest, CheckRefusesWhatIsNotSo) {
  json plan = PlanAt("90%");
  const std::string budget =
      std::to_string(plan["budget_bytes"].get<int64_t>());
  const auto broken = [&](const json& with) {
    PutFile("other.json", with.dump());
    const Outcome outcome =
        Acplan({"check", kTrace, "other.json", "--budget", budget, "--json"});
    EXPECT_EQ(outcome.exit_code, 1);
    return json::parse(outcome.out)["broken_rule"].get<std::string>();
  };
  json other = plan;
  other["peak_bytes"] = other["peak_bytes"].get<int64_t>() - 512;
  EXPECT_THAT(broken(other), HasSubstr("peak"));
  other = plan;
  other["recompute_ms"] = 2 * other["recompute_ms"].get<double>();
  EXPECT_THAT(broken(other), HasSubstr("recomputes"));
  other = plan;
  other["modules"] = json::array();
  EXPECT_THAT(broken(other), HasSubstr("over the budget"));
  const Outcome less =
      Acplan({"check", kTrace, "plan.json", "--budget",
              std::to_string(plan["peak_bytes"].get<int64_t>() - 1)});
  EXPECT_EQ(less.exit_code, 1);
  EXPECT_THAT(less.out, HasSubstr("over the budget"));
}

TEST_F(TraceCommandTest, FrontiersFallWithTheBudget) {
  const json frontier = AcplanJson({"frontier", kTrace, "--points", "6"});
  EXPECT_EQ(frontier["memory_model"], "trace");
  ASSERT_EQ(frontier["plans"].size(), 6u);
  double last = frontier["plans"][0]["recompute_ms"];
  for (const json& plan : frontier["plans"]) {
    EXPECT_EQ(plan["status"], "optimal");
    EXPECT_LE(plan["recompute_ms"], last);
    last = plan["recompute_ms"];
  }
  EXPECT_EQ(last, 0);
}

// A plan made from the statistics of modules is simulated as well.
TEST_F(TraceCommandTest, SnapshotPlansAreSimulated) {
  const Outcome outcome = Acplan(
      {"plan", kTrace, "--budget", "95%", "--memory-model", "snapshot", "-q"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("simulated operator by operator: peak"));
  EXPECT_EQ(PlanAt("95%", {"--granularity", "module"})["memory_model"],
            "snapshot");
  EXPECT_EQ(PlanAt("95%", {"--engine", "cbc"})["memory_model"], "snapshot");
}

TEST_F(TraceCommandTest, ComparesUnderTheTrace) {
  const json plan = PlanAt("90%");
  const json compared = AcplanJson({"show", kTrace, "plan.json"});
  EXPECT_EQ(compared["memory_model"], "trace");
  EXPECT_EQ(compared["plans"][0]["peak_bytes"], plan["baseline"]["peak_bytes"]);
  EXPECT_EQ(compared["plans"][1]["peak_bytes"], plan["peak_bytes"]);
  EXPECT_EQ(compared["plans"][1]["holds"], "yes");
}

TEST_F(TraceCommandTest, RanksShareStates) {
  const json one = PlanAt("100%");
  const json four = PlanAt("100%", {"--world-size", "4"});
  EXPECT_LT(four["peak_bytes"], one["peak_bytes"]);
  const json whole = PlanAt(
      "100%",
      {"--world-size", "4", "--fsdp-units",
       "GPT2LMHeadModel.transformer.h.0,GPT2LMHeadModel.transformer.h.1"});
  EXPECT_GT(whole["peak_bytes"], four["peak_bytes"]);
  EXPECT_EQ(whole["fsdp_units"].size(), 2u);
  EXPECT_EQ(AcplanJson({"check", kTrace, "plan.json", "--budget",
                        std::to_string(
                            whole["budget_bytes"].get<int64_t>())})["holds"],
            true);
}

TEST_F(TraceCommandTest, TreesShowTheDataflowOfModules) {
  const json tree = AcplanJson({"show", "--modules", kTrace});
  EXPECT_GT(tree[0]["dataflow"]["fwd_mem_tmp"], 0);
  EXPECT_GT(tree[0]["dataflow"]["bwd_mem_out"], 0);
  const std::string text = AcplanOut({"show", "--modules", kTrace});
  EXPECT_THAT(text, HasSubstr("saved inside"));
}

TEST_F(TraceCommandTest, WhatTakesATraceSaysSo) {
  Acplan({"profile", kTrace, "-o", "profile.json"});
  PlanAt("90%");
  const auto expect = [&](const std::vector<std::string>& arguments,
                          const std::string& part) {
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect({"plan", "profile.json", "--budget", "90%", "--memory-model", "trace"},
         "--memory-model: expected snapshot or torch for a profile");
  expect({"check", "profile.json", "plan.json", "--budget", "90%"},
         "plan.json: memory_model: expected snapshot or torch for a profile");
  expect({"show", "profile.json", "plan.json"},
         "plan.json: memory_model: expected snapshot or torch for a profile");
  expect({"plan", kTrace, "--budget", "90%", "--memory-model", "trace",
          "--granularity", "module"},
         "--granularity: expected operator");
  expect({"plan", kTrace, "--budget", "90%", "--memory-model", "trace",
          "--engine", "cbc"},
         "--engine: expected auto or labels");
  expect({"plan", kTrace, "--budget", "90%", "--memory-model", "trace",
          "--without-states"},
         "--without-states: needs");
  expect({"plan", kTrace, "--budget", "90%", "--world-size", "2",
          "--fsdp-units", "nothing"},
         "--fsdp-units");
}

}  // namespace

}  // namespace acplan::cli
