#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

using LlmProfileTest = CliTest;

struct StageQuestion {
  std::string name;
  std::vector<std::string> strategy;  // of both commands
  int stages = 1;
};

std::string TrainingModel(const std::string& name) {
  return ACPLAN_DATA_DIR "/training/models/" + name + ".json";
}

// Returns questions small enough for the plan of every stage to be proven, and
// for the GPU to take longer than the host.
std::vector<StageQuestion> ProfileQuestions() {
  return {
      {"dense",
       {TrainingModel("llama-3.1-70b"), "--gpu", "H100", "--gpus", "16", "--tp",
        "8", "--pp", "2", "--gbs", "128", "--seq", "8192", "--budget", "80GiB"},
       2},
      {"interleaved",
       {TrainingModel("llama-3.1-8b"), "--gpu", "H100", "--gpus", "8", "--pp",
        "4", "--vp", "2", "--gbs", "16", "--seq", "32768", "--budget", "70GiB"},
       4},
      {"experts",
       {TrainingModel("mixtral-8x7b"), "--gpu", "H100", "--gpus", "32", "--ep",
        "8", "--pp", "4", "--gbs", "64", "--seq", "16384", "--budget", "75GiB"},
       4}};
}

std::vector<std::string> ProfileCommand(const std::string& command,
                                        const StageQuestion& question,
                                        const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {command};
  arguments.insert(arguments.end(), question.strategy.begin(),
                   question.strategy.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Two planners share no code beyond the layers' operations: the one for any
// PyTorch model plans the stage's profile to the same time as the cost model's
// own.
TEST_F(LlmProfileTest, ThePlanOfTheProfileIsThePlanOfTheStage) {
  for (const StageQuestion& question : ProfileQuestions()) {
    const json plan = AcplanJson(ProfileCommand("train plan", question, {}));
    const double microbatches = plan["strategy"]["gbs"].get<double>() /
                                plan["strategy"]["dp"].get<double>() /
                                plan["strategy"]["mbs"].get<double>();
    double again_ms = 0;
    for (int stage = 0; stage < question.stages; ++stage) {
      AcplanOut(
          ProfileCommand("train profile", question,
                         {"--stage", std::to_string(stage), "-o", "p.json"}));
      const json plan_of_profile =
          AcplanJson({"plan", "p.json", "--budget", question.strategy.back(),
                      "--time-limit", "20"});
      const double ms = plan_of_profile["recompute_ms"];
      const json& own = plan["stages"][static_cast<size_t>(stage)];
      EXPECT_EQ(plan_of_profile["status"], "optimal") << question.name;
      EXPECT_NEAR(ms, 1e3 * microbatches * own["again_s"].get<double>(),
                  1e-9 * (1 + ms))
          << question.name << ", stage " << stage;
      EXPECT_LE(plan_of_profile["peak_bytes"], plan["budget_bytes"]);
      again_ms += ms;
    }
    EXPECT_GT(again_ms, 0) << question.name;
  }
}

// Without recomputation the profile needs the memory that train show reports for
// the stage.
TEST_F(LlmProfileTest, ThePeakIsTheStagesMemory) {
  for (const StageQuestion& question : ProfileQuestions()) {
    const Outcome outcome =
        Acplan(ProfileCommand("train show", question, {"--json"}));
    const json report = json::parse(outcome.out);
    for (int stage = 0; stage < question.stages; ++stage) {
      const json profile = AcplanJson(ProfileCommand(
          "train profile", question, {"--stage", std::to_string(stage)}));
      const json& own = report["stages"][static_cast<size_t>(stage)];
      EXPECT_NEAR(profile["measured"]["peak_bytes"].get<double>(),
                  own["total_bytes"].get<double>(), 4);
    }
  }
}

TEST_F(LlmProfileTest, SaysWhatTheStageHolds) {
  const std::string text = AcplanOut(ProfileCommand(
      "train profile", ProfileQuestions().front(), {"--stage", "1"}));
  for (const char* part : {"llama-3.1-70b, stage 1 of 2: TP 8, PP 2",
                           "1 microbatches in flight", "optimizer state"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(LlmProfileTest, WrongInputIsALine) {
  const StageQuestion question = ProfileQuestions().front();
  ExpectRefused(Acplan({"train", "profile"}), {"CONFIG"});
  ExpectRefused(
      Acplan(ProfileCommand("train profile", question, {"--stage", "2"})),
      {"--stage: expected a whole number from 0 to 1"});
  ExpectRefused(Acplan(ProfileCommand("train profile", question,
                                      {"--offload-layers", "1"})),
                {"offload_layers: expected 0"});
  ExpectRefused(Acplan(ProfileCommand("train profile", question,
                                      {"--offload-states", "true"})),
                {"offload_states: expected false"});
  ExpectRefused(
      Acplan({"train", "profile", TrainingModel("llama-3.1-8b"), "--gpu",
              "H100", "--gpus", "8", "--implementation", "eager"}),
      {"implementation: expected fused"});
  ExpectRefused(
      Acplan(ProfileCommand("train profile", question, {"-o", "p.txt"})),
      {"p.txt"});
}

}  // namespace

}  // namespace acplan::cli
