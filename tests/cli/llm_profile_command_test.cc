#include <fmt/format.h>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string Data(const std::string& name) { return ACPLAN_DATA_DIR "/" + name; }

const std::string kSystem = Data("systems/a100_80g.json");

std::string Model(const std::string& name) {
  return Data("models/" + name + ".json");
}

std::string Strategy(const std::string& name) {
  return Data("validation/seqsel/tab5/" + name + ".json");
}

class LlmProfileCommandTest : public CliTest {
 protected:
  std::vector<std::string> Gpt3(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"llm-profile", Model("gpt3-175B"),
                                          Strategy("gpt3-175B_seqsel"),
                                          kSystem};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // The strategy of gpt3-175B with some of its keys changed, in exe.json.
  Outcome RunChanged(const std::string& command,
                     const std::vector<Edit>& edits) const {
    Put("exe.json",
        Edited(json::parse(graph::ReadFile(Strategy("gpt3-175B_seqsel"))),
               edits));
    std::vector<std::string> arguments = {command, Model("gpt3-175B"),
                                          "exe.json", kSystem};
    if (command == "llm-profile") {
      arguments.insert(arguments.end(), {"-o", "p.json"});
    }
    return Acplan(arguments);
  }
};

// Table 5, whether it fits or not: the memory of a strategy without
// recomputation is the peak of its profile.
TEST_F(LlmProfileCommandTest, TheBaselineIsTheMemoryThatLlmStates) {
  Put("system.json",
      Edited(json::parse(graph::ReadFile(kSystem)), {{"/mem1/GiB", "100000"}}));
  for (const std::string name :
       {"megatron-22B", "gpt3-175B", "turing-530B", "megatron-1T"}) {
    Put("exe.json",
        Edited(json::parse(graph::ReadFile(Strategy(name + "_seqsel"))),
               {{"/activation_recompute", "\"none\""},
                {"/seq_par_ag_redo", "false"}}));
    const json stats = AcplanJson(
        {"llm", Model(name), "exe.json", "system.json", "--mode", "corrected"});
    AcplanOut({"llm-profile", Model(name), Strategy(name + "_seqsel"),
               "system.json", "-o", "p.json.gz"});
    const json baseline = AcplanJson({"baseline", "p.json.gz"});
    EXPECT_EQ(baseline.at("memory_model"), "snapshot");
    EXPECT_NEAR(baseline.at("peak_bytes").get<double>(),
                stats.at("proc_mem_tier1_cap_req").get<double>(), 3)
        << name;
    const json torch =
        AcplanJson({"baseline", "p.json.gz", "--memory-model", "torch"});
    EXPECT_NEAR(torch.at("peak_bytes").get<double>(),
                stats.at("proc_mem_tier1_cap_req").get<double>() -
                    stats.at("optimizer_space").get<double>(),
                3);
  }
}

TEST_F(LlmProfileCommandTest, EveryPlannerCommandReadsIt) {
  const std::string text = AcplanOut(Gpt3({"-o", "p.json"}));
  EXPECT_THAT(text, StartsWith("gpt3-175B, stage 0 of 8, 12 blocks, 10.33 "
                               "microbatches in flight"));
  AcplanOut({"plan", "p.json", "--budget", "70GiB", "-o", "plan.json"});
  const json plan = json::parse(Read("plan.json"));
  EXPECT_EQ(plan.at("status"), "optimal");
  EXPECT_FALSE(plan.at("modules").empty());
  EXPECT_GT(plan.at("recompute_ms").get<double>(), 0);
  EXPECT_LE(plan.at("peak_bytes").get<double>(), 70 * 1073741824.0);
  AcplanOut({"check", "p.json", "plan.json", "--budget", "70GiB"});
  const std::string block = "Transformer.stage.blocks.0";
  AcplanOut({"compare", "p.json", "plan.json", "plan.json"});
  AcplanOut({"frontier", "p.json", "--points", "3"});
  AcplanOut({"tree", "p.json"});
  AcplanOut({"curve", "p.json", block + ".mlp"});
  AcplanOut({"ops", "p.json", block + ".attention", "--memory-budget", "0.5"});
  for (const std::string granularity : {"operator", "module"}) {
    AcplanOut(
        {"plan", "p.json", "--budget", "min", "--granularity", granularity});
  }
}

// The part that Korthikanti et al. recompute, which takes least for its memory.
TEST_F(LlmProfileCommandTest, APlanMayRecomputeTheCoreOfAttention) {
  AcplanOut(Gpt3({"-o", "p.json"}));
  const json plan = AcplanJson({"plan", "p.json", "--budget", "72GiB"});
  for (const json& module : plan.at("modules")) {
    EXPECT_THAT(module.at("fqn").get<std::string>(), HasSubstr(".attention"));
  }
}

TEST_F(LlmProfileCommandTest, StagesAndModes) {
  const json first = AcplanJson(Gpt3({}));
  const json last = AcplanJson(Gpt3({"--stage", "7"}));
  EXPECT_EQ(last.at("model").at("name"), "gpt3-175B, stage 7 of 8");
  EXPECT_GT(first.at("measured").at("peak_bytes").get<double>(),
            last.at("measured").at("peak_bytes").get<double>());
  EXPECT_EQ(first, AcplanJson(Gpt3({"--mode", "corrected"})));
  EXPECT_NE(first, AcplanJson(Gpt3({"--mode", "calculon"})));
  EXPECT_EQ(first.at("device").at("name"), "a100_80g");
  AcplanOut(Gpt3({"-o", "p.json"}));
  EXPECT_EQ(json::parse(Read("p.json")), first);
  EXPECT_THAT(AcplanOut({"llm-profile", "--help"}),
              HasSubstr("corrected (default)"));
  EXPECT_THAT(AcplanOut({"llm", "--help"}), HasSubstr("calculon (default)"));
}

TEST_F(LlmProfileCommandTest, BadInput) {
  for (const std::string stage : {"8", "-1", "x"}) {
    ExpectRefused(Acplan(Gpt3({"-o", "p.json", "--stage=" + stage})),
                  {"--stage", "0 to 7"});
  }
  ExpectRefused(Acplan(Gpt3({"-o", "p.txt"})), {"p.txt", ".json"});
  ExpectRefused(Acplan(Gpt3({"-o", "none/p.json"})), {"none/p.json"});
  ExpectRefused(Acplan(Gpt3({"-o", "p.json", "--mode", "right"})),
                {"--mode", "\"right\""});
  ExpectRefused(Acplan(Gpt3({"-o", "p.json", "--correct", "all"})),
                {"--correct", "\"all\""});
  ExpectRefused(Acplan({"llm-profile", "nope.json", Strategy("gpt3-175B_full"),
                        kSystem, "-o", "p.json"}),
                {"nope.json"});
  ExpectRefused(Acplan({"llm-profile", Model("gpt3-175B"), kSystem}),
                {"SYSTEM"});
  ExpectRefused(
      RunChanged("llm-profile", {{"/training", "false"},
                                 {"/activation_recompute", "\"none\""},
                                 {"/seq_par_ag_redo", "false"}}),
      {"exe.json: training: expected true", "found false"});
  ExpectRefused(Acplan({"llm-profile", Model("gpt3-175B"),
                        Strategy("gpt3-175B_full") + ":0", kSystem}),
                {"\"0\" is a rank"});
  ExpectRefused(RunChanged("llm-profile", {{"/tensor_par_net", "7"}}),
                {"exe.json: tensor_par_net: expected a tier"});
  ExpectRefused(RunChanged("llm-profile", {{"/datatype", "\"int8\""}}),
                {"exe.json", "datatype"});
  EXPECT_FALSE(Exists("p.json"));
  Put("model.json", Edited(json::parse(graph::ReadFile(Model("gpt3-175B"))),
                           {{"/num_blocks", "120000"}}));
  ExpectRefused(Acplan({"llm-profile", "model.json", Strategy("gpt3-175B_full"),
                        kSystem, "-o", "p.json"}),
                {"num_blocks", "4096"});
  EXPECT_FALSE(Exists("p.json"));
}

TEST_F(LlmProfileCommandTest, InfeasibleAsLlmSaysIt) {
  const std::vector<std::vector<Edit>> cases = {
      {{"/pipeline_interleaving", "5"}}, {{"/pipeline_par_net", "0"}}};
  for (const std::vector<Edit>& edits : cases) {
    const Outcome profile = RunChanged("llm-profile", edits);
    const Outcome llm = RunChanged("llm", edits);
    EXPECT_EQ(profile.exit_code, 3);
    EXPECT_EQ(llm.exit_code, 3);
    EXPECT_THAT(profile.out, StartsWith("ERROR: "));
    EXPECT_EQ(profile.out, llm.out);
    EXPECT_EQ(profile.err, llm.err);
    EXPECT_FALSE(Exists("p.json"));
  }
}

// Plans are for what does not fit.
TEST_F(LlmProfileCommandTest, MemoryMayBeExceeded) {
  const Outcome llm = RunChanged("llm", {{"/activation_recompute", "\"none\""},
                                         {"/seq_par_ag_redo", "false"},
                                         {"/microbatch_size", "4"}});
  EXPECT_EQ(llm.exit_code, 3);
  EXPECT_THAT(llm.out, HasSubstr("Mem tier1"));
  const Outcome profile =
      RunChanged("llm-profile", {{"/microbatch_size", "4"}});
  EXPECT_EQ(profile.exit_code, 0);
  EXPECT_TRUE(Exists("p.json"));
}

}  // namespace

}  // namespace acplan::cli
