#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/cli_test.h"

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTraceOfLength[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

// One traced length; tests/problems/length_plans_test.cc has several.
class LengthsCommandTest : public CliTest {
 protected:
  Outcome Run(const std::string& command, const std::string& lengths,
              const std::vector<std::string>& more = {},
              const std::string& trace = kTraceOfLength) const {
    PutFile("lengths", lengths);
    std::vector<std::string> arguments{"lengths " + command, "32=" + trace,
                                       "--lengths", "lengths"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Acplan(arguments);
  }
};

TEST_F(LengthsCommandTest, BatchesOfOneLengthAreAsSimulateSays) {
  const Outcome outcome = Run("simulate", "32\n32\n32\n", {"--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json lengths = json::parse(outcome.out);
  const json run =
      AcplanJson({"simulate", kTraceOfLength, "--allocator", "native"})["run"];
  for (const char* key :
       {"allocated_bytes", "reserved_bytes", "least_device_bytes"}) {
    EXPECT_EQ(lengths[key], run[key]) << key;
  }
  EXPECT_EQ(lengths["batches_ended"], 3);
  EXPECT_EQ(lengths["failure"], nullptr);
}

TEST_F(LengthsCommandTest, RunsAsTheOptionsOfSimulateSay) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{
           {"--empty-cache", "after-forward,before-update"},
           {"--model-order", "largest-first"}}) {
    std::vector<std::string> of_batches = options;
    of_batches.emplace_back("--json");
    const json lengths =
        json::parse(Run("simulate", "32\n32\n32\n", of_batches).out);
    std::vector<std::string> of_step{"simulate", kTraceOfLength, "--allocator",
                                     "native"};
    of_step.insert(of_step.end(), options.begin(), options.end());
    const json run = AcplanJson(of_step)["run"];
    for (const char* key : {"reserved_bytes", "least_device_bytes"}) {
      EXPECT_EQ(lengths[key], run[key]) << options.front() << " " << key;
    }
  }
}

TEST_F(LengthsCommandTest, SaysWhichBatchFails) {
  const Outcome outcome =
      Run("simulate", "eval 32\n32\n", {"--json", "--device-memory", "1MiB"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json failure = json::parse(outcome.out)["failure"];
  EXPECT_EQ(failure["batch"], 0);  // the model does not fit
  EXPECT_THAT(Run("simulate", "eval 32\n32\n").out,
              HasSubstr("2 batches of 1 lengths"));
}

TEST_F(LengthsCommandTest, PlansAreWrittenAndChecked) {
  const std::vector<std::string> arguments{
      "--device-memory", "1GiB", "--time-limit", "5", "-o", "table.json"};
  const Outcome plan = Run("plan", "32\n32\neval 32\n", arguments);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("1 to 32"));
  const Outcome check =
      Run("check", "32\n32\neval 32\n", {"--plan", "table.json"});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("holds: 1 plan for 3 batches"));
  const Outcome failure =
      Run("check", "32\n", {"--plan", "table.json", "--device-memory", "1MiB"});
  EXPECT_EQ(failure.exit_code, 1);
  EXPECT_THAT(failure.out, HasSubstr("broken: the plan up to length 32"));
  EXPECT_EQ(Run("simulate", "32\n", {"--plan", "table.json"}).exit_code, 0);
  const Outcome none =
      Run("plan", "32\n", {"--device-memory", "1MiB", "--time-limit", "5"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.out, HasSubstr("infeasible: no plan for the longest batch"));
}

// One length and one plan: the run is the one that repeats the step.
TEST_F(LengthsCommandTest, ExplainsAsExplainDoes) {
  AcplanOut({"plan", kTraceOfLength, "--device-memory", "1GiB", "-o",
             "plan.json", "--optimizer-state", "update", "--allocator",
             "native"});
  const json run = AcplanJson({"explain", kTraceOfLength, "--device-memory",
                               "1GiB", "--plan", "plan.json"})["device"];
  const Outcome outcome =
      Run("explain", "32\n32\n32\n32\n", {"--json", "--plan", "plan.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json lengths = json::parse(outcome.out);
  for (const char* key : {"allocated_bytes", "reserved_bytes",
                          "least_device_bytes", "device_bytes", "fits"}) {
    EXPECT_EQ(lengths[key], run[key]) << key;
  }
  EXPECT_EQ(lengths["peak"]["hole_bytes"], run["peak"]["hole_bytes"]);
  EXPECT_EQ(lengths["peak"]["beside_holes"], run["peak"]["beside_holes"]);
  for (const json& lever : lengths["levers"]) {
    const auto same = std::ranges::find_if(
        run["levers"],
        [&](const json& other) { return other["levers"] == lever["levers"]; });
    ASSERT_NE(same, run["levers"].end()) << lever;
    EXPECT_EQ(lever["least_device_bytes"], (*same)["least_device_bytes"]);
  }
  EXPECT_THAT(Run("explain", "32\n", {"--device-memory", "1GiB"}).out,
              HasSubstr("at batch 1 of length 32, "));
}

TEST_F(LengthsCommandTest, DrawsARunOfBatches) {
  AcplanOut(
      {"plan", kTraceOfLength, "--device-memory", "1GiB", "-o", "plan.json"});
  const Outcome outcome = Run("report", "32\neval 32\n32\n",
                              {"--plan", "plan.json", "-o", "page.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string page = Read("page.html");
  const size_t begin = page.find("id=\"data\">") + 10;
  const json data =
      json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const json simulated =
      json::parse(Run("simulate", "32\neval 32\n32\n", {"--json"}).out);
  ASSERT_EQ(data["runs"].size(), 2);
  const json& run = data["runs"][0]["device"]["runs"][0];
  for (const char* key :
       {"allocated_bytes", "reserved_bytes", "least_device_bytes"}) {
    EXPECT_EQ(run[key], simulated[key]) << key;
  }
  EXPECT_EQ(data["lengths"][0]["evaluations"], 1);
  EXPECT_THAT(run["peak"]["place"].get<std::string>(), HasSubstr("batch "));
  EXPECT_EQ(Run("report", "32\n", {"-o", "page.svg"}).exit_code, 2);
}

TEST_F(LengthsCommandTest, EvaluationsHaveTracesOfTheirOwn) {
  const Outcome same =
      Run("simulate", "32\neval 32\n",
          {"--json", "--evaluation", "32=" + std::string(kTraceOfLength)});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out, Run("simulate", "32\neval 32\n", {"--json"}).out);
  EXPECT_THAT(Run("simulate", "32\neval 64\n",
                  {"--evaluation", "32=" + std::string(kTraceOfLength)})
                  .err,
              HasSubstr("evaluations: length 64: expected one from 32 to 32"));
}

TEST_F(LengthsCommandTest, OtherCommandsNameThoseForTables) {
  ASSERT_EQ(Run("plan", "32\n", {"--device-memory", "1GiB", "-o", "t.json"})
                .exit_code,
            0);
  const std::vector<std::vector<std::string>> commands = {
      {"explain", kTraceOfLength, "--plan", "t.json"},
      {"explain", "t.json"},
      {"report", kTraceOfLength, "t.json", "-o", "page.html"},
      {"check", kTraceOfLength, "t.json", "--budget", "1GiB"},
      {"simulate", kTraceOfLength, "t.json"}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = Acplan(command);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err,
                HasSubstr("found a table of plans: use acplan lengths"));
  }
}

TEST_F(LengthsCommandTest, WrongInputIsRefused) {
  using Case = std::pair<std::vector<std::string>, std::string>;
  PutFile("ok", "32\n");
  const std::string trace = "32=" + std::string(kTraceOfLength);
  const std::vector<Case> cases = {
      {{"lengths explain", trace, "--lengths", "ok"},
       "--device-memory is required, unless --plan is a table"},
      {{"lengths report", trace, "--lengths", "ok"},
       "-o: expected the name of the page"},
      {{"lengths plan", trace, "--lengths", "ok"},
       "--device-memory is required"},
      {{"lengths simulate", kTraceOfLength, "--lengths", "ok"},
       "expected its length before it"},
      {{"lengths simulate", trace, trace, "--lengths", "ok"},
       "expected traces of different lengths, found 32"},
      {{"lengths simulate", trace, "--lengths", "none"}, "none"},
      {{"lengths simulate", trace, "--lengths", "ok", "--draws", "0"},
       "--draws: "},
      {{"lengths simulate", trace, "--lengths", "ok", "--draws", "3"},
       "ok: expected a histogram to draw from"},
      {{"lengths check", trace, "--lengths", "ok", "--plan", "ok"},
       "ok: expected a table of plans"},
      {{"lengths plan", trace, "--lengths", "ok", "--device-memory", "1GiB",
        "--plans", "0"},
       "--plans: "}};
  for (const auto& [arguments, complaint] : cases) {
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << complaint;
    EXPECT_THAT(outcome.err, HasSubstr(complaint));
    EXPECT_EQ(outcome.out, "");
  }
  const Outcome plan =
      Run("plan", "32\n", {"--device-memory", "1GiB", "-o", "table.json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  json older = json::parse(graph::ReadFile(kTraceOfLength));
  older.erase("model_tensors");
  PutFile("older.json", older.dump());
  for (const char* command :
       {"plan", "simulate", "check", "explain", "report"}) {
    std::vector<std::string> more{"--ddp", "default", "--device-memory",
                                  "1GiB"};
    if (command != std::string("plan")) {
      more.insert(more.end(), {"--plan", "table.json"});
    }
    if (command == std::string("report")) {
      more.insert(more.end(), {"-o", "page.html"});
    }
    const Outcome outcome = Run(command, "32\n", more, "older.json");
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("--ddp: length 32: the trace does not "
                                       "say when gradients are ready"))
        << command;
  }
  EXPECT_EQ(
      Run("simulate", "16\n").err,
      "acplan: length 16: expected one from 32 to 32, which are traced\n");
}

}  // namespace
}  // namespace acplan::cli
