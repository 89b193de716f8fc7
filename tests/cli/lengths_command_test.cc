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
              const std::vector<std::string>& more = {}) const {
    PutFile("lengths", lengths);
    std::vector<std::string> arguments{"lengths " + command,
                                       "32=" + std::string(kTraceOfLength),
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

TEST_F(LengthsCommandTest, WrongInputIsRefused) {
  using Case = std::pair<std::vector<std::string>, std::string>;
  PutFile("ok", "32\n");
  const std::string trace = "32=" + std::string(kTraceOfLength);
  const std::vector<Case> cases = {
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
  EXPECT_EQ(
      Run("simulate", "16\n").err,
      "acplan: length 16: expected one from 32 to 32, which are traced\n");
}

}  // namespace
}  // namespace acplan::cli
