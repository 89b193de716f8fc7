#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/json_scan.h"
#include "tests/cli/cli_test.h"

// The regret of a plan if run-times are wrong, as the program prints and writes it.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTimesTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";

class TimesOffFlagsTest : public CliTest {
 protected:
  Outcome PlanWith(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {"plan", kTimesTrace, "--budget",
                                        "85%",  "-o",        "plan.json"};
    command.insert(command.end(), flags.begin(), flags.end());
    return Acplan(command);
  }
  json WrittenPlan() const {
    return json::parse(graph::ReadFile(folder() / "plan.json"));
  }
};

TEST_F(TimesOffFlagsTest, EveryPlanOnATraceSaysWhatFollowsFromItsBound) {
  const Outcome outcome = PlanWith({});
  EXPECT_EQ(outcome.out.find("run-times off"), std::string::npos);
  const json off = WrittenPlan().at("times_off");
  EXPECT_EQ(off.at("factor"), 1.5);
  // The plan is optimal, so no other one recomputes less than 1 / 1.5^2 of it.
  EXPECT_NEAR(off.at("by_operator").at("recomputation"), 1.25, 1e-9);
  EXPECT_LE(off.at("by_kind").at("step"), off.at("by_operator").at("step"));
  EXPECT_FALSE(off.at("by_kind").contains("at_least"));
}

TEST_F(TimesOffFlagsTest, ASearchProvesMuchLess) {
  ASSERT_EQ(PlanWith({}).exit_code, 0);
  const json free = WrittenPlan().at("times_off");
  const Outcome outcome = PlanWith({"--times-off", "1.5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("run-times off by up to 1.5, against the best plan"));
  const json off = WrittenPlan().at("times_off");
  EXPECT_LT(off.at("by_kind").at("step"), free.at("by_kind").at("step"));
  EXPECT_LE(off.at("by_kind").at("at_least").at("step"),
            off.at("by_kind").at("step"));
  EXPECT_EQ(
      Acplan({"check", kTimesTrace, "plan.json", "--budget", "85%"}).exit_code,
      0);
}

TEST_F(TimesOffFlagsTest, MeasuredErrorsAreSmallerThanAFactor) {
  ASSERT_EQ(PlanWith({"--times-off", "1.5"}).exit_code, 0);
  const json wide = WrittenPlan().at("times_off");
  EXPECT_FALSE(wide.contains("factors"));
  const Outcome outcome = PlanWith({"--times-off", "measured"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("factors: products 1.23, convolutions"));
  const json off = WrittenPlan().at("times_off");
  EXPECT_NEAR(off.at("factors").at("products"), 1 / (1 - .19), 1e-9);
  EXPECT_EQ(off.at("factor"), off.at("factors").at("convolutions"));
  EXPECT_LT(off.at("by_kind").at("step"), wide.at("by_kind").at("step"));
  EXPECT_LT(off.at("by_operator").at("step"),
            wide.at("by_operator").at("step"));
  EXPECT_EQ(
      Acplan({"check", kTimesTrace, "plan.json", "--budget", "85%"}).exit_code,
      0);
}

TEST_F(TimesOffFlagsTest, AStepThatWaitsForTheHostHasNoFigures) {
  const auto outcome_of = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"plan", ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz",
                  "--budget", "99%", "-o", "plan.json"});
    return Acplan(flags);
  };
  ASSERT_EQ(outcome_of({}).exit_code, 0);
  const json plain = WrittenPlan();
  ASSERT_GT(plain.at("host").at("ms"), plain.at("host").at("device_ms"));
  EXPECT_FALSE(plain.contains("times_off"));
  const Outcome robust = outcome_of({"--robust"});
  EXPECT_THAT(robust.out, HasSubstr("steps of such plans wait for the host"));
  EXPECT_EQ(WrittenPlan().at("host").at("step_ms"),
            plain.at("host").at("step_ms"));
  EXPECT_THAT(outcome_of({"--robust", "--without-host"}).out,
              HasSubstr("robust: no plan's worst step by kind"));
}

TEST_F(TimesOffFlagsTest, NothingWasMeasuredOnSomeDevices) {
  json trace = json::parse(
      graph::ReadJsonText(ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz"));
  const auto complaint = [&] {
    graph::WriteFile(folder() / "trace.json", trace.dump());
    return Acplan({"plan", "trace.json", "--budget", "85%", "--times-off",
                   "measured"})
        .err;
  };
  json& errors = trace["device"]["time_errors"];
  errors["ninety_of_kinds"]["products"] = 1;
  EXPECT_THAT(complaint(), HasSubstr("products: expected a number below 1"));
  errors.erase("ninety_of_kinds");
  EXPECT_THAT(complaint(), HasSubstr("no operators were measured on a100"));
  trace["device"].erase("time_errors");
  EXPECT_THAT(complaint(), HasSubstr("does not say how far its times are off"));
}

// For ViT the worst corner has two kinds of five that take longer.
TEST_F(TimesOffFlagsTest, SeveralKindsMayTakeLongerAtOnce) {
  const Outcome outcome =
      Acplan({"plan", ACPLAN_DATA_DIR "/traces/vit_base.json.gz", "--budget",
              "60%", "--times-off", "1.5", "--time-limit", "none", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json off = json::parse(outcome.out).at("times_off");
  const json ratios = off.at("worst_kinds");
  EXPECT_EQ(ratios.at("attention"), 1.5);
  EXPECT_EQ(ratios.at("others"), 1.5);
  EXPECT_LT(ratios.at("products"), 1);
  EXPECT_NEAR(off.at("by_kind").at("step"), .0201, 2e-4);
  EXPECT_NEAR(off.at("by_kind").at("at_least").at("step"), .0201, 2e-4);
}

TEST_F(TimesOffFlagsTest, TrueTimesLeaveNothingToLose) {
  ASSERT_EQ(PlanWith({"--times-off", "1", "--time-limit", "none"}).exit_code,
            0);
  const json off = WrittenPlan().at("times_off");
  EXPECT_NEAR(off.at("by_operator").at("step"), 0, 1e-9);
  EXPECT_NEAR(off.at("by_kind").at("recomputation"), 0, 1e-9);
}

TEST_F(TimesOffFlagsTest, ARobustPlanLosesNoMore) {
  ASSERT_EQ(PlanWith({"--times-off", "2"}).exit_code, 0);
  const json plan = WrittenPlan();
  const Outcome outcome = PlanWith({"--times-off", "2", "--robust"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("robust: no plan's worst step by kind"));
  const json robust = WrittenPlan();
  EXPECT_LE(robust["times_off"]["by_kind"]["step"].get<double>(),
            plan["times_off"]["by_kind"]["step"].get<double>() + 1e-4);
  EXPECT_LE(robust.at("times_off").at("least_step"),
            robust.at("times_off").at("by_kind").at("step"));
  EXPECT_GE(robust["recompute_ms"].get<double>(),
            plan["bound_ms"].get<double>());
  EXPECT_EQ(
      Acplan({"check", kTimesTrace, "plan.json", "--budget", "85%"}).exit_code,
      0);
}

TEST_F(TimesOffFlagsTest, WrongFlagsAreRefusedInALine) {
  struct Case {
    std::vector<std::string> flags;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"--times-off", ".9"},
       "--times-off: expected measured or a number from 1 to 100"},
      {{"--times-off", "nan"},
       "--times-off: expected measured or a number from 1 to 100"},
      {{"--times-off", "inf"},
       "--times-off: expected measured or a number from 1 to 100"},
      {{"--times-off", "1e9"},
       "--times-off: expected measured or a number from 1 to 100"},
      {{"--times-off", "2x"},
       "--times-off: expected measured or a number from 1 to 100"},
      {{"--times-off", "2", "--offload", "25GB/s"},
       "--times-off: cannot be combined with --offload"},
      {{"--robust", "--offload", "25GB/s"},
       "--robust: cannot be combined with --offload"},
      {{"--robust", "--memory-model", "snapshot"},
       "--robust: needs a plan on a trace"},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.error);
    const Outcome outcome = PlanWith(wrong.flags);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(wrong.error));
  }
  const Outcome outcome =
      Acplan({"plan", kTimesTrace, "--device-memory", "8GiB", "--robust"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--robust: needs --budget"));
}

}  // namespace
}  // namespace acplan::cli
