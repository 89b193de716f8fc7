#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

// The command emit: what it prints, and what it refuses.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kEmitTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";

class EmitCommandTest : public CliTest {
 protected:
  Outcome Emit(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {"emit", kEmitTrace};
    command.insert(command.end(), flags.begin(), flags.end());
    return Acplan(command);
  }
};

TEST_F(EmitCommandTest, PrintsAConfigurationWithItsFigures) {
  const Outcome outcome =
      Emit({"--budget", "10GiB", "--for", "axolotl", "-o", "axolotl.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("# acplan emit "));
  EXPECT_THAT(outcome.out, HasSubstr("# for axolotl "));
  EXPECT_THAT(outcome.out, HasSubstr("the least that this language can say"));
  EXPECT_THAT(outcome.out, HasSubstr("\ngradient_checkpointing: true\n"));
  EXPECT_THAT(outcome.out, HasSubstr("    - \"aten::addmm\"\n"));
  EXPECT_EQ(graph::ReadFile(folder() / "axolotl.yaml"), outcome.out);
}

// More words never cost more, and acplan's own plans have all of them.
TEST_F(EmitCommandTest, LanguagesWithMoreWordsCostLess) {
  double before = 0;
  for (const char* trainer : {"torch", "axolotl", "transformers"}) {
    const Outcome outcome =
        Emit({"--budget", "9GiB", "--for", trainer, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json answer = json::parse(outcome.out);
    EXPECT_EQ(answer.at("status"), "optimal");
    EXPECT_LE(answer.at("peak_bytes"), answer.at("budget_bytes"));
    const double least = answer.at("plan").at("recompute_ms");
    EXPECT_GE(answer.at("recompute_ms"), std::max(before, least));
    before = answer.at("recompute_ms");
  }
}

TEST_F(EmitCommandTest, SaysTheLeastBudgetOfTheLanguage) {
  const Outcome outcome = Emit({"--budget", "6GiB", "--for", "trl"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out,
              HasSubstr("no policy of trl fits in 6.00 GiB (6,442,450,944 "
                        "bytes); the least budget of its language is 6.34"));
  const json least =
      json::parse(Emit({"--budget", "min", "--for", "trl", "--json"}).out);
  EXPECT_EQ(least.at("peak_bytes"), least.at("least_budget_bytes"));
  EXPECT_EQ(least.at("least_is_proven"), true);
  const std::string below =
      std::to_string(least.at("peak_bytes").get<int64_t>() - 1);
  EXPECT_EQ(Emit({"--budget", below, "--for", "trl"}).exit_code, 3);
}

// Every language has an answer whose figures hold within its bound.
TEST_F(EmitCommandTest, WritesForEveryTrainer) {
  for (const char* trainer :
       {"maxtext", "megatron", "nemo", "transformers", "veomni"}) {
    const Outcome outcome =
        Emit({"--budget", "9GiB", "--for", trainer, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << trainer << outcome.err;
    const json answer = json::parse(outcome.out);
    EXPECT_EQ(answer.at("status"), "optimal") << trainer;
    EXPECT_LE(answer.at("peak_bytes"), answer.at("budget_bytes"));
    EXPECT_FALSE(answer.at("units").empty()) << trainer;
  }
  // Runs of blocks need less than blocks one by one.
  const json runs =
      json::parse(Emit({"--budget", "min", "--for", "megatron", "--json"}).out);
  EXPECT_THAT(runs.at("text").get<std::string>(),
              HasSubstr("--recompute-method uniform"));
  EXPECT_THAT(runs.at("units").front().get<std::string>(), HasSubstr("h.0-"));
}

TEST_F(EmitCommandTest, FitsADevice) {
  const auto answer = [&](const char* bytes) {
    return Emit({"--device-memory", bytes, "--for", "axolotl", "--json"});
  };
  const json large = json::parse(answer("11GiB").out);
  EXPECT_LE(large.at("on_device").at("least_device_bytes"),
            large.at("budget_bytes"));
  EXPECT_LT(large.at("peak_bytes"), large.at("budget_bytes"));
  EXPECT_GE(large.at("recompute_ms"), large.at("bound_ms"));
  const Outcome text =
      Emit({"--device-memory", "11GiB", "--for", "axolotl", "--allocator",
            "native", "--optimizer-state", "update"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("# on the device: "));
  EXPECT_THAT(text.out, HasSubstr("--allocator 'native'"));
  const Outcome small = answer("6GiB");
  EXPECT_EQ(small.exit_code, 3);
  EXPECT_THAT(
      Emit({"--budget", "9GiB", "--device-memory", "9GiB", "--for", "trl"}).err,
      HasSubstr("expected one of --budget and --device-memory"));
  EXPECT_THAT(Emit({"--for", "trl"}).err,
              HasSubstr("expected one of --budget and --device-memory"));
}

TEST_F(EmitCommandTest, RefusesWrongNames) {
  EXPECT_EQ(Emit({"--budget", "8GiB", "--for", "torchtian"}).err,
            "acplan: --for: expected one of accelerate, axolotl, lightning, "
            "maxtext, megatron, nemo, prime-rl, torch, torchtitan, "
            "transformers, trl, veomni, found "
            "\"torchtian\"; nearest: torchtitan\n");
  const Outcome blocks =
      Emit({"--budget", "8GiB", "--for", "trl", "--blocks", "*.layers.*"});
  EXPECT_EQ(blocks.exit_code, 2);
  EXPECT_EQ(blocks.err,
            "acplan: --blocks: expected a pattern of modules with others "
            "inside, found \"*.layers.*\"; nearest: "
            "GPT2LMHeadModel.transformer.h.*\n");
}

// A link lets values wait on the host: the faster it is, the less a step costs.
TEST_F(EmitCommandTest, OffloadsWhereTheTrainerHasWordsForIt) {
  double cost_before = std::numeric_limits<double>::infinity();
  for (const char* rate : {"1MB/s", "5GB/s", "100GB/s"}) {
    const Outcome outcome = Emit(
        {"--budget", "7GiB", "--for", "maxtext", "--offload", rate, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json answer = json::parse(outcome.out);
    EXPECT_EQ(answer.at("status"), "optimal");
    EXPECT_LE(answer.at("peak_bytes"), answer.at("budget_bytes"));
    const double cost = answer.at("recompute_ms").get<double>() +
                        answer.at("stall_ms").get<double>();
    EXPECT_LE(cost, cost_before) << rate;
    cost_before = cost;
  }
  const Outcome text = Emit({"--budget", "7GiB", "--for", "maxtext",
                             "--offload", "100GB/s", "-o", "run.yml"});
  EXPECT_THAT(text.out, HasSubstr(": offload\n"));
  const Outcome audit =
      Acplan({"audit", (folder() / "run.yml").string(), "--trace", kEmitTrace,
              "--offload", "100GB/s", "--json"});
  ASSERT_EQ(audit.exit_code, 0) << audit.err;
  EXPECT_FALSE(json::parse(audit.out).at("offloaded").empty());
  EXPECT_THAT(
      Emit({"--budget", "7GiB", "--for", "trl", "--offload", "5GB/s"}).err,
      HasSubstr("such as maxtext, found trl"));
  EXPECT_THAT(
      Emit({"--budget", "min", "--for", "maxtext", "--offload", "5GB/s"}).err,
      HasSubstr("--offload: expected a budget other than min"));
  EXPECT_THAT(Emit({"--device-memory", "9GiB", "--for", "maxtext", "--offload",
                    "5GB/s"})
                  .err,
              HasSubstr("--offload: needs --budget"));
}

}  // namespace
}  // namespace acplan::cli
