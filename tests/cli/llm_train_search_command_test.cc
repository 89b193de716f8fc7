#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

using LlmTrainSearchTest = CliTest;

std::vector<std::string> SearchWith(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "llm-train-search", kModel, "--gpu", "h100",
      "--gpus",           "16",   "--gbs", "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(LlmTrainSearchTest, ShowsTheFastestWithinAHundredColumns) {
  const std::string text = AcplanOut(SearchWith({"-t", "4"}));
  EXPECT_THAT(text, HasSubstr("strategies"));
  EXPECT_THAT(text, HasSubstr("recompute"));
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

// What is found is what llm-train says of the same strategy.
TEST_F(LlmTrainSearchTest, AnswersAreThoseOfLlmTrain) {
  const json found = AcplanJson(SearchWith({"-t", "5", "-o", "s.json"}));
  EXPECT_EQ(json::parse(Read("s.json")), found);
  ASSERT_EQ(found["best"].size(), 5U);
  double before = 0;
  for (const json& best : found["best"]) {
    const double seconds = best["iteration_s"];
    EXPECT_GE(seconds, before);
    before = seconds;
    EXPECT_TRUE(best["fits"].get<bool>());
    const json& s = best["strategy"];
    std::vector<std::string> again = {"llm-train", kModel, "--gpu", "h100",
                                      "--gpus",    "16",   "--gbs", "64"};
    for (const char* key : {"tp", "pp", "vp", "cp", "mbs", "zero"}) {
      again.push_back(std::string("--") + key);
      again.push_back(s[key].dump());
    }
    again.push_back("--recompute");
    again.push_back(s["recompute"]);
    EXPECT_EQ(AcplanJson(again)["iteration_s"], seconds);
  }
}

// Without time for plans the search says that it is not proven, and nothing else
// changes.
TEST_F(LlmTrainSearchTest, PlansEndAtTheTimeLimit) {
  const auto search = [&](const char* limit) {
    return AcplanJson({"llm-train-search", kModel, "--gpu", "h100", "--gpus",
                       "64", "--gbs", "512", "--seq", "8192", "-t", "1",
                       "--time-limit", limit});
  };
  const json without = search("0");
  EXPECT_FALSE(without["proven"].get<bool>());
  EXPECT_GT(without["unplanned"], 0);
  EXPECT_EQ(without["planned"], 0);
  const json planned = search("none");
  EXPECT_TRUE(planned["proven"].get<bool>());
  EXPECT_EQ(planned["unplanned"], 0);
  EXPECT_EQ(planned["strategies"], without["strategies"]);
  EXPECT_EQ(planned["best"][0]["strategy"]["recompute"], "plan");
  EXPECT_LT(planned["best"][0]["iteration_s"],
            without["best"][0]["iteration_s"]);
}

TEST_F(LlmTrainSearchTest, ADegreeThatIsSaidIsKept) {
  const json found =
      AcplanJson(SearchWith({"--tp", "4", "--pp", "2", "--recompute", "full"}));
  for (const json& best : found["best"]) {
    EXPECT_EQ(best["strategy"]["tp"], 4);
    EXPECT_EQ(best["strategy"]["pp"], 2);
    EXPECT_THAT(best["strategy"]["recompute"].get<std::string>(),
                HasSubstr("full"));
  }
}

TEST_F(LlmTrainSearchTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"llm-train-search"}), {"CONFIG"});
  ExpectRefused(Acplan(SearchWith({"-t", "0"})), {"-t: expected"});
  ExpectRefused(Acplan(SearchWith({"--sp", "false"})), {"--sp: expected true"});
  ExpectRefused(Acplan(SearchWith({"--tp", "x"})), {"--tp: expected a whole"});
  ExpectRefused(Acplan(SearchWith({"-o", "s.csv"})), {"s.csv"});
  ExpectRefused(Acplan(SearchWith({"--set", "pp_schedule=DualPipe"})),
                {"pp_schedule: expected none in a search", "DualPipe"});
  const Outcome outcome = Acplan(SearchWith({"--budget", "1GiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("fits 1.00 GiB a GPU"));
}

}  // namespace

}  // namespace acplan::cli
