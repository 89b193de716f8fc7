#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kModel = ACPLAN_DATA_DIR "/models/megatron-22B.json";
const std::string kSystem = ACPLAN_DATA_DIR "/systems/a100_80g.json";

class LlmSearchCommandTest : public CliTest {
 protected:
  std::vector<std::string> Search(std::vector<std::string> flags = {}) const {
    std::vector<std::string> arguments = {"llm-search", kModel, kSystem,
                                          "8",          "8",    "float16"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }

  json Written(const std::string& name) const {
    return json::parse(graph::ReadFile(folder() / name));
  }

  void ExpectRefused(const std::vector<std::string>& flags,
                     const std::string& words) const {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"-o", "refused.json"});
    const Outcome outcome = Acplan(Search(all));
    EXPECT_EQ(outcome.exit_code, 2) << words;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_EQ(Lines(outcome.err).size(), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(folder() / "refused.json"));
  }
};

TEST_F(LlmSearchCommandTest, ShowsAndWritesTheBest) {
  const Outcome outcome = Acplan(Search({"-t", "3", "-o", "best.json"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("fixed policies"), HasSubstr("plans "),
                    HasSubstr("proven: no strategy with any plan is faster")));
  const json best = Written("best.json");
  ASSERT_EQ(best.size(), 3);
  double last = 1e300;
  for (const auto& [rank, entry] : best.items()) {
    const double rate = entry.at("stats").at("sample_rate");
    EXPECT_LE(rate, last);
    last = rate;
    EXPECT_EQ(entry.at("execution").size(), 23);
    int64_t blocks = 0;
    for (const json& stage : entry.at("plan")) {
      blocks += stage.at("blocks").get<int64_t>();
    }
    EXPECT_EQ(blocks, 48);
  }
}

TEST_F(LlmSearchCommandTest, FixedPoliciesAreThoseOfTheDropInSearch) {
  for (const char* mode : {"corrected", "calculon"}) {
    ASSERT_EQ(Acplan({"loe", kModel, "8", "8", "float16", kSystem, "loe.json",
                      "-t", "5", "--mode", mode})
                  .exit_code,
              0);
    std::vector<std::string> flags = {"-t",         "5",      "-o",
                                      "fixed.json", "--mode", mode};
    if (mode == std::string("corrected")) {
      flags.insert(flags.end(), {"--policies", "fixed"});
    }
    ASSERT_EQ(Acplan(Search(flags)).exit_code, 0);
    EXPECT_EQ(Written("fixed.json"), Written("loe.json")) << mode;
  }
}

TEST_F(LlmSearchCommandTest, ShardsMergeToTheSameFile) {
  ASSERT_EQ(Acplan(Search({"-t", "20", "-o", "one.json"})).exit_code, 0);
  std::vector<std::string> merge = {"llm-merge"};
  for (int shard = 1; shard <= 4; ++shard) {
    const std::string name = "part" + std::to_string(shard) + ".json";
    ASSERT_EQ(Acplan(Search({"-t", "20", "-o", name, "--shard",
                             std::to_string(shard) + "/4"}))
                  .exit_code,
              0);
    merge.push_back(name);
  }
  merge.push_back("merged.json");
  const Outcome merged = Acplan(merge);
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(graph::ReadFile(folder() / "merged.json"),
            graph::ReadFile(folder() / "one.json"));
}

// Shards of as few strategies as may be, some of which have none that is fast
// enough for the whole space.
TEST_F(LlmSearchCommandTest, ShardsMayHaveNothingOfTheBest) {
  for (const char* batch : {"1", "64"}) {
    SCOPED_TRACE(batch);
    const std::vector<std::string> search = {
        "llm-search", kModel, kSystem, "8", batch, "float16", "-t", "1"};
    const auto with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = search;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    AcplanOut(with({"-o", "whole.json"}));
    std::vector<std::string> merge = {"llm-merge"};
    size_t found = 0;
    for (int shard = 1; shard <= 8; ++shard) {
      const std::string name = "part" + std::to_string(shard) + ".json";
      AcplanOut(with({"-o", name, "--shard", std::to_string(shard) + "/8"}));
      found += Written(name).size() - 1;
      merge.push_back(name);
    }
    EXPECT_LT(found, 8);
    merge.push_back("merged.json");
    AcplanOut(merge);
    EXPECT_EQ(Written("merged.json"), Written("whole.json"));
  }
}

TEST_F(LlmSearchCommandTest, FixesKeysAndBudgets) {
  const Outcome outcome =
      Acplan(Search({"-t", "1", "-o", "best.json", "--fix", "tensor_par=2..4",
                     "--fix", "weight_offload=false", "--budget", "60GiB"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json best = Written("best.json").at("0");
  EXPECT_LE(best.at("execution").at("tensor_par"), 4);
  EXPECT_GE(best.at("execution").at("tensor_par"), 2);
  EXPECT_FALSE(best.at("execution").at("weight_offload"));
  for (const json& stage : best.at("plan")) {
    EXPECT_LE(stage.at("memory").at("tier1"), 60.0 * (1 << 30));
  }
}

TEST_F(LlmSearchCommandTest, AFrontRisesWithItsBudget) {
  const Outcome outcome = Acplan(
      Search({"--pareto", "6", "-o", "front.json", "--fix",
              "weight_offload=false", "--fix", "activations_offload=false"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json front = Written("front.json");
  ASSERT_GT(front.size(), 1);
  double budget = 0;
  double rate = 0;
  for (const auto& [rank, entry] : front.items()) {
    const json& stats = entry.at("stats");
    EXPECT_GT(stats.at("budget_bytes"), budget);
    EXPECT_GT(stats.at("sample_rate"), rate);
    EXPECT_LE(stats.at("proc_mem_tier1_cap_req"), stats.at("budget_bytes"));
    budget = stats.at("budget_bytes");
    rate = stats.at("sample_rate");
  }
}

TEST_F(LlmSearchCommandTest, WritesCsv) {
  ASSERT_EQ(Acplan(Search({"-t", "2", "-o", "best.csv"})).exit_code, 0);
  const std::vector<std::string> lines =
      Lines(graph::ReadFile(folder() / "best.csv"));
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("tensor_par"), HasSubstr("sample_rate_bound"),
                    Not(HasSubstr("plan"))));
}

TEST_F(LlmSearchCommandTest, SaysWhereNothingFits) {
  const Outcome outcome = Acplan(Search({"--budget", "1MiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("no strategy fits"));
}

TEST_F(LlmSearchCommandTest, FixedKeysOpenTheSpace) {
  for (const auto& [key, value] :
       {std::pair<std::string, json>{"fused_activation", false},
        {"attention_type", "multiquery"}}) {
    const std::string text =
        value.is_string() ? value.get<std::string>() : value.dump();
    EXPECT_EQ(Acplan(Search({"--fix", key + "=" + text, "-t", "2", "-o",
                             "fixed.json"}))
                  .exit_code,
              0);
    const json best = Written("fixed.json");
    for (const auto& [unused, entry] : best.items()) {
      EXPECT_EQ(entry.at("execution").at(key), value);
    }
  }
}

// A file about a memory without bounds can be read.
TEST_F(LlmSearchCommandTest, MemoryWithoutBounds) {
  const std::string system = ACPLAN_DATA_DIR "/systems/a100_80e.json";
  const Outcome outcome =
      Acplan({"llm-search", kModel, system, "8", "8", "float16", "-t", "1",
              "--fix", "tensor_par=8", "-o", "best.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("float16, 76293.95 PiB of memory"));
  const json plan =
      AcplanJson({"llm-plan", kModel, "best.json", system, "--json"});
  EXPECT_EQ(plan.at("sample_rate"),
            Written("best.json").at("0").at("stats").at("sample_rate"));
}

TEST_F(LlmSearchCommandTest, RefusesBadInput) {
  ExpectRefused({"--fix", "training=false"}, "--fix: training: expected true");
  ExpectRefused({"--fix", "num_procs=4"}, "--fix: num_procs: expected 8");
  ExpectRefused({"--fix", "datatype=float8"},
                "--fix: datatype: expected float16");
  ExpectRefused({"--fix", "tensor=1"}, "--fix");
  ExpectRefused({"--fix", "activation_recompute=full"}, "--policies fixed");
  ExpectRefused({"--policies", "all"}, "--policies");
  ExpectRefused({"--policies", "plan", "--mode", "calculon"}, "--policies");
  ExpectRefused({"--pareto", "1"}, "--pareto");
  ExpectRefused({"--pareto", "4", "--shard", "1/2"}, "--shard");
  ExpectRefused({"--budget", "1.5"}, "--budget");
  ExpectRefused({"-t", "0"}, "--top-n");
  ExpectRefused({"--shard", "3/2"}, "--shard");
}

}  // namespace

}  // namespace acplan::cli
