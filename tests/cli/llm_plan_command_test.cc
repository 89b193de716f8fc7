#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kPlannedModel =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

using LlmPlanTest = CliTest;

// Returns a question about two stages whose layers keep more than there is room
// for.
std::vector<std::string> PlanQuestion(const std::string& command,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      command, kPlannedModel, "--gpu", "h100",  "--gpus", "8",
      "--gbs", "32",          "--seq", "32768", "--pp",   "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// train show has the same figures for a plan, which is faster than other
// recomputation that fits, and which covers every layer.
TEST_F(LlmPlanTest, PlansWhatEachLayerKeeps) {
  const json full =
      AcplanJson(PlanQuestion("train show", {"--recompute", "full"}));
  ASSERT_TRUE(full["fits"].get<bool>());
  const json trained =
      AcplanJson(PlanQuestion("train show", {"--recompute", "plan"}));
  const json plan = AcplanJson(PlanQuestion("train plan", {"-o", "plan.json"}));
  EXPECT_EQ(json::parse(Read("plan.json")), plan);
  EXPECT_EQ(plan["format"], "acplan.training_plan");
  EXPECT_EQ(plan["iteration_s"], trained["iteration_s"]);
  EXPECT_EQ(plan["recompute_s"], trained["parts_s"]["recompute"]);
  EXPECT_LT(plan["iteration_s"], full["iteration_s"]);
  EXPECT_LE(plan["bound_s"], plan["iteration_s"]);
  ASSERT_EQ(plan["others"].size(), 2U);
  EXPECT_FALSE(plan["others"][0]["fits"].get<bool>());
  EXPECT_LT(plan["others"][0]["iteration_s"], plan["iteration_s"]);
  EXPECT_EQ(plan["others"][1]["recompute"], "full");
  EXPECT_EQ(plan["others"][1]["iteration_s"], full["iteration_s"]);
  int layers = 0;
  for (const json& stage : plan["stages"]) {
    EXPECT_LE(stage["total_bytes"], plan["budget_bytes"]);
    for (const json& policy : stage["policies"]) {
      layers += policy["layers"].get<int>();
    }
  }
  EXPECT_EQ(layers, 32);
}

// Megatron-LM's flags, read back as a strategy, are the one that was megatron, and no other
// recomputation that they can say is faster and fits.
TEST_F(LlmPlanTest, PrintsMegatronsFlags) {
  const json answer =
      AcplanJson(PlanQuestion("train plan", {"--for", "megatron"}));
  const json& megatron = answer["megatron"];
  EXPECT_TRUE(megatron["fits"].get<bool>());
  EXPECT_GE(megatron["iteration_s"], answer["iteration_s"]);
  for (const char* other : {"full", "full:4", "selective:layernorm",
                            "selective:layernorm+mlp", "selective:mlp"}) {
    const Outcome outcome =
        Acplan(PlanQuestion("train show", {"--recompute", other, "--json"}));
    if (outcome.exit_code != 0) continue;  // it does not fit
    const json report = json::parse(outcome.out);
    EXPECT_GE(report["iteration_s"], megatron["iteration_s"]) << other;
  }
  const std::string text =
      AcplanOut(PlanQuestion("train plan", {"--for", "megatron"}));
  EXPECT_EQ(text, megatron["text"]);
  EXPECT_THAT(text, HasSubstr("    --pipeline-model-parallel-size 2\n"));
  EXPECT_THAT(text, HasSubstr("    --recompute-granularity "));
  const json report_of_it = AcplanJson(PlanQuestion(
      "train show", {"--recompute", megatron["recompute"].get<std::string>()}));
  EXPECT_EQ(report_of_it["iteration_s"], megatron["iteration_s"]);
  const std::string bridge =
      AcplanOut(PlanQuestion("train plan", {"--for", "megatron-bridge"}));
  EXPECT_THAT(bridge, HasSubstr("\nmodel:\n  tensor_model_parallel_size: 1\n"));
  EXPECT_EQ(Acplan(PlanQuestion("train plan", {"--for", "nemo"})).err,
            "acplan: --for: expected megatron or megatron-bridge, found "
            "\"nemo\"\n");
}

// A model whose layers the stages do not divide has a layout.
TEST_F(LlmPlanTest, PrintsMegatronsLayout) {
  const std::string text = AcplanOut(PlanQuestion(
      "train plan", {"--set", "pipeline_model_parallel_layout=Et*15|t*17L",
                     "--for", "megatron"}));
  EXPECT_THAT(text, HasSubstr("--pipeline-model-parallel-layout "
                              "\"Ettttttttttttttt|tttttttttttttttttL\""));
}

// Megatron-Core counts the layers of each chunk: three of a chunk with two layers would be
// fewer than the stage was said to recompute (full:6, which is faster).
TEST_F(LlmPlanTest, PrintsNoMoreLayersThanTheSmallestChunkHas) {
  const json answer = AcplanJson(
      {"train", "plan", kPlannedModel, "--gpu", "H100", "--gpus", "64", "--pp",
       "2", "--set", "pipeline_model_parallel_layout=Et*2|t*14|t*14|t*2L",
       "--seq", "16384", "--gbs", "64", "--for", "megatron"});
  EXPECT_EQ(answer["megatron"]["recompute"], "selective:mlp");
}

TEST_F(LlmPlanTest, ShowsItWithinAHundredColumns) {
  const std::string text = AcplanOut(PlanQuestion("train plan", {}));
  for (const char* part : {"recomputation plan", "recomputed operations",
                           "recomputation", "does not fit", "fits: stage"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

// A plan names its strategy, which can be planned again for another budget.
TEST_F(LlmPlanTest, PlansTheStrategyOfAPlan) {
  const json plan = AcplanJson(PlanQuestion("train plan", {"-o", "plan.json"}));
  EXPECT_EQ(
      AcplanJson({"train", "plan", kPlannedModel, "--strategy", "plan.json"}),
      plan);
  const json tighter = AcplanJson({"train", "plan", kPlannedModel, "--strategy",
                                   "plan.json", "--budget", "70GiB"});
  EXPECT_GT(tighter["iteration_s"], plan["iteration_s"]);
}

// The plan replaces every kind of recomputation in a strategy's file.
TEST_F(LlmPlanTest, ReplacesTheStrategysRecomputation) {
  PutFile("s.json", R"({"recompute_granularity": "full", "recompute_method":
      "uniform", "recompute_num_layers": 1})");
  EXPECT_EQ(AcplanJson(PlanQuestion("train plan", {"--strategy", "s.json"})),
            AcplanJson(PlanQuestion("train plan", {})));
}

TEST_F(LlmPlanTest, WhatDoesNotFitIsNotWritten) {
  const Outcome outcome =
      Acplan(PlanQuestion("train plan", {"--budget", "20GiB", "-o", "p.json"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out,
              HasSubstr("no plan fits; this plan keeps the least"));
  EXPECT_FALSE(Exists("p.json"));
}

TEST_F(LlmPlanTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "plan"}), {"CONFIG"});
  ExpectRefused(Acplan(PlanQuestion("train plan", {"--recompute", "full"})),
                {"--recompute: expected plan or no value", "\"full\""});
  ExpectRefused(
      Acplan(PlanQuestion("train plan", {"--implementation", "eager"})),
      {"plan"});
  ExpectRefused(Acplan(PlanQuestion("train plan", {"-o", "p.txt"})), {"p.txt"});
  // A model of Calculon is no config.json.
  ExpectRefused(
      Acplan({"train", "plan", ACPLAN_DATA_DIR "/models/gpt3-13B.json", "--gpu",
              "h100", "--gpus", "8"}),
      {"gpt3-13B.json: expected a config.json", "a model for Calculon"});
}

}  // namespace

}  // namespace acplan::cli
