#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kConfig =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

using LlmTrainTest = CliTest;

std::vector<std::string> With(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train", "show",   kConfig, "--gpu",
                                        "h100",  "--gpus", "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(LlmTrainTest, SaysTimeRatesAndMemoryWithinAHundredColumns) {
  const std::string text = AcplanOut(
      With({"--tp", "2", "--pp", "4", "--cp", "2", "--recompute",
            "selective:core_attn", "--price", "2.5", "--tokens", "1e12"}));
  for (const char* part :
       {"TP 2, PP 4, CP 2, DP 4, ZeRO 1", "tensor-parallel communication",
        "context-parallel communication", "pipeline bubble",
        "model utilisation", "GPU-hours", "at 2.5 per GPU-hour",
        "\nfits: stage 0 holds",
        "\nP parameters, G gradients, O optimizer, A activations, "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

TEST_F(LlmTrainTest, SaysHowManyRanksShareAnExpertWithoutOtherDegrees) {
  const std::string mixtral =
      ACPLAN_DATA_DIR "/training/models/mixtral-8x7b.json";
  const Outcome outcome = Acplan(
      {"train", "show", mixtral, "--gpu", "h100", "--gpus", "8", "--etp", "2"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr(": ETP 2, DP 8, ZeRO 1\n"));
}

TEST_F(LlmTrainTest, BytesBeyondIntegersAreNotNegative) {
  json config = json::parse(graph::ReadFile(kConfig));
  config["hidden_size"] = 1561786512;
  PutFile("huge.json", config.dump());
  const Outcome outcome = Acplan({"train", "show", "huge.json", "--gpu", "a100",
                                  "--gpus", "16", "--tp", "2", "--json"});
  ASSERT_EQ(outcome.exit_code, 3) << outcome.err;
  const json report = json::parse(outcome.out);
  for (const json& stage : report["stages"]) {
    EXPECT_GT(stage["total_bytes"], 0x1p63);
  }
}

// The limit is what the card offers, less the communicators of the strategy.
TEST_F(LlmTrainTest, SaysWhatTheLimitIsASumOf) {
  const json report = AcplanJson(With({"--tp", "2"}));
  const json& device = report["device"];
  EXPECT_EQ(device["gpu"], "h100");
  EXPECT_EQ(device["communicators"], 3);
  const double reserved = device["capacity_bytes"].get<double>() -
                          device["context_bytes"].get<double>() -
                          device["communicator_bytes"].get<double>();
  EXPECT_EQ(device["allocator_loss"], .065);
  EXPECT_NEAR(report["budget_bytes"].get<double>(), (1 - .065) * reserved, 1);
  EXPECT_THAT(AcplanOut(With({"--tp", "2"})),
              testing::AllOf(HasSubstr("of 3 communicators = "),
                             HasSubstr("its allocator loses 6.5% of that: ")));
  const json whole = AcplanJson(With({"--tp", "2", "--allocator-loss", "0"}));
  EXPECT_EQ(whole["budget_bytes"].get<double>(), reserved);
  EXPECT_EQ(Acplan(With({"--allocator-loss", "2"})).exit_code, 2);
  EXPECT_FALSE(
      AcplanJson(With({"--tp", "2", "--budget", "80GB"})).contains("device"));
}

// The numbers keep the relations in docs/file_formats.md.
TEST_F(LlmTrainTest, JsonAddsUp) {
  const json report =
      AcplanJson(With({"--pp", "4", "--gbs", "64", "--price", "3", "--tokens",
                       "2e9", "-o", "r.json"}));
  EXPECT_EQ(json::parse(Read("r.json")), report);
  double seconds = 0;
  for (const auto& [name, part] : report["parts_s"].items()) {
    seconds += part.get<double>();
  }
  EXPECT_NEAR(seconds, report["iteration_s"], 1e-9 * seconds);
  const double rate = report["tokens_per_gpu_s"];
  EXPECT_NEAR(rate * seconds * 64, 64 * 4096, 1e-3);
  EXPECT_NEAR(report["gpu_hours"], 2e9 / rate / 3600, 1e-6);
  EXPECT_NEAR(report["cost"], 3 * report["gpu_hours"].get<double>(), 1e-6);
  EXPECT_NEAR(report["model_utilisation"],
              report["model_flops"].get<double>() / seconds / 64 / 989.4e12,
              1e-9);
  ASSERT_EQ(report["stages"].size(), 4U);
  for (const json& stage : report["stages"]) {
    int64_t bytes = 0;
    for (const char* part : {"parameters", "gradients", "optimizer",
                             "activations", "logits", "working", "libraries"}) {
      bytes += stage[std::string(part) + "_bytes"].get<int64_t>();
    }
    EXPECT_NEAR(static_cast<double>(bytes), stage["total_bytes"], 4);
  }
}

TEST_F(LlmTrainTest, FlagsReplaceWhatTheFileSays) {
  PutFile("s.json",
          R"({"gpu": "H100", "gpus": 64, "tensor-model-parallel-size": 8,
      "micro-batch-size": 2})");
  const json both =
      AcplanJson({"train", "show", kConfig, "--strategy", "s.json", "--tp", "4",
                  "--set", "micro_batch_size=4"});
  EXPECT_EQ(both["strategy"]["tp"], 4);
  EXPECT_EQ(both["strategy"]["mbs"], 4);
  EXPECT_EQ(both["strategy"]["dp"], 16);
}

// The report of every strategy states it in a form that can be read again.
TEST_F(LlmTrainTest, AReportIsAStrategyFile) {
  const std::vector<std::vector<std::string>> kinds = {
      {"--tp", "4", "--sp", "false", "--overlap-tp", "true"},
      {"--pp", "4", "--vp", "2", "--recompute", "full:3"},
      {"--pp", "4", "--pp-schedule", "zbv", "--zero", "0"},
      {"--pp", "2", "--set", "first_layers=15", "--set", "last_layers=17"},
      {"--zero", "3", "--set", "optimizer_copies=4", "--cp", "2",
       "--cp-comm-type", "a2a"},
      {"--pp", "2", "--set", "pipeline_model_parallel_layout=Et*15|t*17L"},
      {"--attention", "unfused", "--set", "dropout=0.2", "--recompute",
       "selective:core_attn+layernorm"},
      {"--attention", "unfused", "--hidden-dropout", "0.1"},
      {"--attention", "unfused", "--attention-dropout", "0.1"},
      {"--precision", "fp8_current", "--grad-dtype", "bf16", "--cuda-graphs",
       "partial", "--set", "exp_avg_dtype=bf16"},
      {"--software", "NeMo 25.04", "--offload-layers", "2"},
      {"--software", "Megatron-LM 23e00ed0", "--set", "grad_reduce_in_bf16=1"},
      {"--nvlink-domain", "4", "--network-gbs", "12.5", "--recompute", "plan"},
      {"--implementation", "eager", "--mbs", "2", "--overlap-dp", "false"}};
  for (std::vector<std::string> kind : kinds) {
    kind.insert(kind.end(), {"--budget", "500GiB"});
    const json report = AcplanJson(With(kind));
    PutFile("r.json", report.dump());
    EXPECT_EQ(AcplanJson({"train", "show", kConfig, "--strategy", "r.json",
                          "--budget", "500GiB"}),
              report)
        << kind.front();
  }
  PutFile("wrong.json", R"({"format": "acplan.training", "strategy": {"dp": 3,
      "gpus": 64, "gpu": "H100"}})");
  ExpectRefused(Acplan({"train", "show", kConfig, "--strategy", "wrong.json"}),
                {"wrong.json: strategy: dp: expected 64"});
  ExpectRefused(Acplan({"train show", kConfig, "--strategy", "r.json:1"}),
                {"r.json: expected a file of train search for rank \"1\"",
                 "acplan.training"});
}

TEST_F(LlmTrainTest, WhatDoesNotFitIsShownAndExitsThree) {
  const Outcome outcome = Acplan(With({"--budget", "20GiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("does not fit: stage 0 holds"));
  EXPECT_EQ(outcome.err, "");
}

// Applies to all commands on training runs.
TEST_F(LlmTrainTest, LinesKeepToTheScreen) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{
           {"train", "show", kConfig, "--pp", "2", "--tokens", "1e12"},
           {"train", "plan", kConfig, "--pp", "2", "--seq", "32768"},
           {"train", "search", kConfig, "--gbs", "64"},
           {"train", "fit", kConfig, "--gbs", "64"},
           {"train", "compare", kConfig, "tp=2,pp=2", "tp=4", "recompute=full"},
           {"train", "profile", kConfig, "--pp", "2"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(),
                     {"--gpu", "h100", "--gpus", "16", "--color", "never"});
    const Outcome outcome =
        Acplan(arguments, {.out = Stream::kTerminal, .columns = 80});
    EXPECT_EQ(outcome.exit_code, 0) << command[0];
    for (std::string line : Lines(outcome.out)) {
      std::erase(line, '\r');
      EXPECT_LE(TextWidth(line), 80U) << command[0] << ": " << line;
      // A part of a table has no rows without cells.
      EXPECT_THAT(line, testing::Not(testing::MatchesRegex(" *[0-9]+")));
    }
  }
}

// Returns a user's own GPU: all of H100's numbers except a product's speed.
std::string OwnSystem(double bf16_tflops) {
  const json systems =
      json::parse(graph::ReadFile(ACPLAN_DATA_DIR "/training/systems.json"));
  json gpu;
  for (const json& accelerator : systems["accelerators"]) {
    if (accelerator["name"] == "H100-SXM5") gpu = accelerator;
  }
  gpu["name"] = "mine";
  gpu["bf16_tflops"] = {{"value", bf16_tflops}, {"from", "measured"}};
  const json file = {{"format", "acplan.system"},
                     {"version", 1},
                     {"accelerators", json::array({gpu})}};
  return file.dump();
}

TEST_F(LlmTrainTest, OnesOwnSystemIsTheGpuThatIsMeant) {
  PutFile("mine.json", OwnSystem(989.4));
  PutFile("slow.json", OwnSystem(98.94));
  const auto seconds = [&](const std::vector<std::string>& gpu) {
    std::vector<std::string> command = {"train",  "show", kConfig,
                                        "--gpus", "64",   "--json"};
    command.insert(command.end(), gpu.begin(), gpu.end());
    return json::parse(AcplanOut(command))["iteration_s"].get<double>();
  };
  const double known_seconds = seconds({"--gpu", "H100"});
  EXPECT_DOUBLE_EQ(seconds({"--system", "mine.json"}), known_seconds);
  EXPECT_GT(seconds({"--system", "slow.json"}), 2 * known_seconds);
  EXPECT_DOUBLE_EQ(seconds({"--system", "slow.json", "--gpu", "H100"}),
                   known_seconds);
  PutFile("bad.json", R"({"format": "acplan.trace"})");
  ExpectRefused(
      Acplan({"train", "show", kConfig, "--gpus", "8", "--system", "bad.json"}),
      {"bad.json: format: expected \"acplan.system\""});
  PutFile("none.json",
          R"({"format": "acplan.system", "version": 1, "accelerators": []})");
  ExpectRefused(Acplan({"train", "show", kConfig, "--gpus", "8", "--system",
                        "none.json"}),
                {"none.json: accelerators: expected at least one GPU"});
  PutFile("new.json",
          R"({"format": "acplan.system", "version": 2, "accelerators": []})");
  ExpectRefused(
      Acplan({"train", "show", kConfig, "--gpus", "8", "--system", "new.json"}),
      {"new.json: version: expected 1"});
}

TEST_F(LlmTrainTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "show"}), {"CONFIG"});
  ExpectRefused(Acplan({"train", "show", "nope.json"}), {"nope.json"});
  ExpectRefused(Acplan({"train", "show", kConfig, "--gpus", "8"}),
                {"gpu: expected a GPU"});
  ExpectRefused(Acplan(With({"--tp", "x"})),
                {"--tp: expected a whole number", "\"x\""});
  ExpectRefused(Acplan(With({"--tp", "6"})),
                {"expected a divisor of 64 (gpus), found 6 x 1 x 1"});
  ExpectRefused(Acplan(With({"--set", "tp"})), {"--set: expected KEY=VALUE"});
  ExpectRefused(Acplan(With({"--set", "tpp=2"})), {"--set: tpp", "near"});
  ExpectRefused(Acplan(With({"--budget", "much"})), {"--budget"});
  ExpectRefused(Acplan(With({"--price", "-1"})), {"--price"});
  ExpectRefused(Acplan(With({"--tokens", "0"})), {"--tokens"});
  ExpectRefused(Acplan(With({"-o", "r.txt"})), {"r.txt"});
  ExpectRefused(Acplan(With({"--strategy", "nope.json"})), {"nope.json"});
  PutFile("c.json", R"({"model_type": "mamba", "hidden_size": 8})");
  ExpectRefused(
      Acplan({"train", "show", "c.json", "--gpu", "h100", "--gpus", "8"}),
      {"c.json: model_type: expected one of the "});
}

}  // namespace

}  // namespace acplan::cli
