#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kComparedModel =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

using LlmCompareTest = CliTest;

std::vector<std::string> CompareWith(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "train", "compare", kComparedModel, "--gpu", "h100", "--gpus",
      "64",    "--gbs",   "512",          "--seq", "8192"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Each column has train show's figures for that strategy.
TEST_F(LlmCompareTest, SaysOfEachWhatLlmTrainSays) {
  PutFile("file.json", R"({"tensor_model_parallel_size": 4})");
  const json compared = AcplanJson(
      CompareWith({"tp=2,pp=2,recompute=full", "file.json", "-o", "c.json"}));
  EXPECT_EQ(json::parse(Read("c.json")), compared);
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "train", "show",  kComparedModel, "--gpu", "h100", "--gpus",
        "64",    "--gbs", "512",          "--seq", "8192"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return AcplanJson(arguments);
  };
  const json& strategies = compared["strategies"];
  ASSERT_EQ(strategies.size(), 2U);
  EXPECT_EQ(strategies[0]["report"],
            train({"--tp", "2", "--pp", "2", "--recompute", "full"}));
  EXPECT_EQ(strategies[1]["report"], train({"--tp", "4"}));
  EXPECT_EQ(strategies[1]["name"], "file");
  EXPECT_EQ(strategies[0]["ratio"], 1.0);
  EXPECT_NEAR(strategies[1]["ratio"],
              strategies[1]["report"]["iteration_s"].get<double>() /
                  strategies[0]["report"]["iteration_s"].get<double>(),
              1e-12);
}

TEST_F(LlmCompareTest, ReadsWhatSearchesAndPlansWrote) {
  const json answer = AcplanJson({"train", "search", kComparedModel, "--gpu",
                                  "h100", "--gpus", "64", "--gbs", "512",
                                  "--seq", "8192", "-t", "2", "-o", "s.json"});
  AcplanOut({"train", "plan", kComparedModel, "--gpu", "h100", "--gpus", "64",
             "--gbs", "512", "--seq", "8192", "--pp", "2", "-o", "p.json"});
  const json compared = AcplanJson(
      {"train compare", kComparedModel, "s.json", "s.json:2", "p.json"});
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(compared["strategies"][rank]["report"]["iteration_s"],
              answer["best"][rank]["iteration_s"]);
  }
  EXPECT_EQ(compared["strategies"][2]["report"]["iteration_s"],
            json::parse(Read("p.json"))["iteration_s"]);
}

TEST_F(LlmCompareTest, ShowsWhatDiffersWithinAHundredColumns) {
  const std::string text = AcplanOut(
      CompareWith({"tp=2", "tp=4", "tp=8", "tp=4,pp=2,vp=2", "tp=2,cp=2",
                   "recompute=plan,zero=3", "--price", "2"}));
  for (const char* part : {"1  tp=2", "tp 4", "ratio to the first",
                           "hardware utilisation", "cost", "fits"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  // All have the same precision.
  EXPECT_THAT(text, testing::Not(HasSubstr("precision")));
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

TEST_F(LlmCompareTest, WhereNoneFitsExitsThree) {
  const Outcome outcome = Acplan(CompareWith({"tp=2", "--budget", "10GiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("does not fit"));
}

TEST_F(LlmCompareTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "compare", kComparedModel}), {"STRATEGIES"});
  ExpectRefused(Acplan(CompareWith({"tp=2,pq=3"})), {"tp=2,pq=3: pq"});
  ExpectRefused(Acplan(CompareWith({"tp=2,pp"})),
                {"tp=2,pp: expected KEY=VALUE, found \"pp\""});
  ExpectRefused(Acplan(CompareWith({"nope.json"})), {"nope.json"});
  ExpectRefused(Acplan(CompareWith({"tp=3"})), {"expected a divisor of 64"});
  PutFile("s.json", R"({"tp": 2})");
  ExpectRefused(
      Acplan(CompareWith({"s.json", "-o", "s.json"})),
      {"--output: expected a file other than the input, found \"s.json\""});
}

}  // namespace

}  // namespace acplan::cli
