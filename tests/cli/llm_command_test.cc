#include <fmt/format.h>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string LlmData(const std::string& name) {
  return (name.starts_with("custom/") ? ACPLAN_TEST_DATA_DIR "/calculon/"
                                      : ACPLAN_DATA_DIR "/") +
         name;
}

std::string GoldenLlm(const std::string& name) {
  return graph::ReadFile(ACPLAN_TEST_DATA_DIR "/calculon/llm_cli/" + name);
}

const std::string kExample = LlmData("examples/3072_t4_p64_d12_mbs4_full.json");
const std::string kSystem = LlmData("systems/a100_80g.json");
const std::string kLlmModel = LlmData("models/megatron-1T.json");

class LlmCommandTest : public CliTest {
 protected:
  std::vector<std::string> Example(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"calculon", "llm", kLlmModel,
                                          kExample, kSystem};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Writes the example with one of its keys changed to exe.json.
  void PutExecution(const std::vector<Edit>& edits) const {
    PutFile("exe.json", Edited(json::parse(graph::ReadFile(kExample)), edits));
  }
};

// Compares byte for byte.
TEST_F(LlmCommandTest, DashPrintsCalculonsText) {
  for (const json& one : json::parse(GoldenLlm("index.json"))) {
    const std::string name = one.at("name");
    PutFile("exe.json", GoldenLlm(name + ".exe.json"));
    EXPECT_EQ(AcplanOut({"calculon", "llm", LlmData(one.at("model")),
                         "exe.json", LlmData(one.at("system")), "-"}),
              GoldenLlm(name + ".display.txt"))
        << name;
  }
  EXPECT_EQ(AcplanOut(Example({"-"})), GoldenLlm("example.display.txt"));
}

TEST_F(LlmCommandTest, WritesStatisticsLayersAndPeers) {
  for (const json& one : json::parse(GoldenLlm("index.json"))) {
    const std::string name = one.at("name");
    PutFile("exe.json", GoldenLlm(name + ".exe.json"));
    EXPECT_EQ(AcplanOut({"calculon", "llm", LlmData(one.at("model")),
                         "exe.json", LlmData(one.at("system")), "stats.json",
                         "-p", "peers.json", "--layers"}),
              "");
    const ordered_json ours = ordered_json::parse(Read("stats.json"));
    const ordered_json theirs =
        ordered_json::parse(GoldenLlm(name + ".stats.json.gz"));
    EXPECT_TRUE(ours == theirs) << name;  // in this order, too
    EXPECT_EQ(Read("peers.json"), GoldenLlm(name + ".peers.json.gz")) << name;
  }
}

TEST_F(LlmCommandTest, PacksWhatIsNamedSo) {
  AcplanOut(Example({"stats.json"}));
  AcplanOut(Example({"stats.json.gz"}));
  const std::string packed = graph::ReadFile(folder() / "stats.json.gz");
  EXPECT_EQ(json::parse(Read("stats.json")), json::parse(packed));
  EXPECT_THAT(packed, StartsWith("{\"block_fw_flops\": "));
  EXPECT_THAT(packed, Not(HasSubstr("\n")));
  EXPECT_THAT(Read("stats.json"), StartsWith("{\n  \"block_fw_flops\": "));
  EXPECT_THAT(Read("stats.json"), testing::EndsWith("\n}"));
  EXPECT_EQ(json::parse(Read("stats.json")),
            json::parse(GoldenLlm("example.stats.json")));
}

TEST_F(LlmCommandTest, PrintsTablesWithoutAFile) {
  const std::string text = AcplanOut(Example({}));
  for (const char* part :
       {"megatron-1T on a100_80g", "3,072 processors",
        "tensor 4 x pipeline 64 x data 12", "pipeline bubble",
        "optimizer state", "capacity", "80.000 GiB", "efficiency"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(LlmCommandTest, PrintsJson) {
  EXPECT_EQ(AcplanJson(Example({})),
            json::parse(GoldenLlm("example.stats.json")));
}

TEST_F(LlmCommandTest, TheLogsLevelAndFile) {
  const std::string text = AcplanOut(Example({"-"}));
  const auto extended = [&](std::vector<std::string> before) {
    for (const std::string& argument : Example({"-"})) {
      before.push_back(argument);
    }
    return AcplanOut(before);
  };
  EXPECT_EQ(extended({"-v", "INFO"}), text);
  EXPECT_EQ(extended({"-l", "-"}), text);
  EXPECT_EQ(extended({"-v", "WARNING"}), "");
  EXPECT_EQ(extended({"--verbosity=ERROR"}), "");
  EXPECT_EQ(extended({"-l", "log.txt"}), "");
  EXPECT_EQ(Read("log.txt"), text);
  EXPECT_EQ(extended({"--log=log.txt", "-v", "CRITICAL"}), "");
  EXPECT_EQ(Read("log.txt"), "");
  ExpectRefused(Acplan({"-v", "LOUD", "llm", "a", "b", "c"}),
                {"-v", "DEBUG", "LOUD"});
  ExpectRefused(Acplan({"-l", "none/log.txt", "llm", "a", "b", "c"}),
                {"--log", "none/log.txt"});
  ExpectRefused(Acplan({"-l", "", "llm", "a", "b", "c"}),
                {"--log", "found nothing"});
  EXPECT_EQ(AcplanOut({"-v", "WARNING", "version"}), "");
}

TEST_F(LlmCommandTest, DebugPrintsLayersAndBatch) {
  std::vector<std::string> arguments = Example({"-"});
  arguments.insert(arguments.begin(), {"-v", "DEBUG"});
  const std::string text = AcplanOut(arguments);
  EXPECT_THAT(text, HasSubstr("AttnBlock_Fork Recompute flag: True\n"));
  EXPECT_THAT(text, HasSubstr("MlpBlock_Mlp2 FW flops: "));
  EXPECT_THAT(text, HasSubstr("DP block comm size: "));
  EXPECT_THAT(text, testing::EndsWith(GoldenLlm("example.display.txt")));
}

TEST_F(LlmCommandTest, InfeasibleInMemory) {
  PutExecution(
      {{"/activation_recompute", "\"none\""}, {"/microbatch_size", "16"}});
  const Outcome outcome =
      Acplan({"calculon", "llm", kLlmModel, "exe.json", kSystem, "stats.json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out,
            "ERROR: Mem tier1 needs 704.164 GiB but only has 80.000 GiB\n");
  EXPECT_THAT(outcome.err, StartsWith("acplan: infeasible: memory tier 1"));
  EXPECT_THAT(outcome.err, HasSubstr("85899345920 bytes"));
  EXPECT_THAT(outcome.err, HasSubstr("optimizer state"));
  EXPECT_FALSE(Exists("stats.json"));
}

TEST_F(LlmCommandTest, InfeasibleByARule) {
  struct Case {
    std::vector<Edit> edits;
    std::string error, numbers;
  };
  const std::vector<Case> cases = {
      {{{"/data_par_net", "0"}},
       "Network tier0 isn't big enough",
       "network tier 0 connects 8 processors, tensor_par 4 * data_par 12 on it "
       "need 48"},
      {{{"/pipeline_par_net", "0"},
        {"/data_par_net", "0"},
        {"/num_procs", "3"},
        {"/tensor_par", "1"},
        {"/pipeline_par", "1"},
        {"/data_par", "3"}},
       "Network tier0 isn't fully used",
       "network tier 0 connects 8 processors and must be filled, data_par 3 on "
       "it do not divide that: 3"},
      {{{"/pipeline_interleaving", "3"}},
       "Pipeline interleaving must be less than or equal to the number of "
       "blocks per processor",
       "the 2 blocks of a processor (num_blocks 128 over pipeline_par 64)"},
      {{{"/weight_offload", "true"}},
       "Offloading requires each processor to handle at least 3 blocks",
       "2 of the 3 blocks"},
  };
  for (const Case& one : cases) {
    PutExecution(one.edits);
    const Outcome outcome =
        Acplan({"calculon", "llm", kLlmModel, "exe.json", kSystem});
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.out, "ERROR: " + one.error + "\n");
    EXPECT_THAT(outcome.err, HasSubstr(one.numbers));
  }
}

TEST_F(LlmCommandTest, ContradictionsNameTheFile) {
  struct Case {
    std::vector<Edit> edits;
    std::string said;
  };
  const std::vector<Case> cases = {
      {{{"/tensor_par_net", "7"}},
       "tensor_par_net: expected a tier of the system, 0 to 1, found 7"},
      {{{"/pipeline_par_net", "2"}}, "pipeline_par_net: expected a tier"},
      {{{"/data_par_net", "2"}}, "data_par_net: expected a tier"},
      {{{"/datatype", "\"bfloat16\""}}, "found \"bfloat16\""},
      {{{"/tensor_par", "3"}, {"/data_par", "16"}, {"/tensor_par_net", "1"}},
       "tensor_par: expected a divisor of microbatch_size * seq_size (8192), "
       "found 3"},
      {{{"/tensor_par", "3"},
        {"/data_par", "16"},
        {"/tensor_par_net", "1"},
        {"/tensor_par_comm_type", "\"ar\""}},
       "tensor_par: expected a divisor of hidden (25600), found 3"},
  };
  for (const Case& one : cases) {
    PutExecution(one.edits);
    ExpectRefused(Acplan({"calculon", "llm", kLlmModel, "exe.json", kSystem}),
                  {"exe.json: ", one.said});
  }
}

TEST_F(LlmCommandTest, WrongFilesAndNames) {
  PutFile("empty.json", "");
  PutFile("model.txt", graph::ReadFile(kLlmModel));
  PutFile("fake.json.gz", graph::ReadFile(kLlmModel));
  graph::WriteFile(folder() / "ok.json.gz", graph::ReadFile(kLlmModel));
  const std::string packed = Read("ok.json.gz");
  PutFile("cut.json.gz", packed.substr(0, packed.size() / 2));
  ExpectRefused(Acplan({"calculon", "llm", "empty.json", kExample, kSystem}),
                {"empty.json", "found it empty"});
  ExpectRefused(Acplan({"calculon", "llm", "model.txt", kExample, kSystem}),
                {"model.txt", ".json or .json.gz"});
  ExpectRefused(Acplan({"calculon", "llm", "nope.json", kExample, kSystem}),
                {"nope.json", "cannot be opened"});
  ExpectRefused(Acplan({"calculon", "llm", "fake.json.gz", kExample, kSystem}),
                {"fake.json.gz", "gzip"});
  ExpectRefused(Acplan({"calculon", "llm", "cut.json.gz", kExample, kSystem}),
                {"cut.json.gz", "gzip"});
  EXPECT_EQ(
      AcplanOut({"calculon", "llm", "ok.json.gz", kExample, kSystem, "-"}),
      GoldenLlm("example.display.txt"));
  // They are refused before anything is computed or written.
  ExpectRefused(Acplan(Example({"stats.txt"})), {"stats.txt", ".json"});
  ExpectRefused(Acplan(Example({"none/stats.json"})), {"none/stats.json"});
  ExpectRefused(Acplan(Example({"stats.json", "-p", "peers.txt"})),
                {"peers.txt", ".json"});
  ExpectRefused(Acplan(Example({"stats.json", "-p", "stats.json"})),
                {"--peers", "stats.json"});
  EXPECT_FALSE(Exists("stats.json"));
  ExpectRefused(Acplan({"calculon", "llm", kLlmModel, kExample}), {"SYSTEM"});
  ExpectRefused(Acplan({"calculon", "llm", "ok.json.gz", kExample, kSystem,
                        "ok.json.gz"}),
                {"ok.json.gz", "a file other than the input"});
}

TEST_F(LlmCommandTest, SaysWhatIsIgnored) {
  PutFile("model.json", Edited(json::parse(graph::ReadFile(kLlmModel)),
                               {{"/vocabulary", "5"}}));
  const Outcome outcome = Acplan(
      {"calculon", "llm", "model.json", kExample, kSystem, "-", "--verbose"});
  EXPECT_EQ(outcome.out, GoldenLlm("example.display.txt"));
  EXPECT_EQ(outcome.err, "acplan: model.json: vocabulary: ignored\n");
}

TEST_F(LlmCommandTest, ValidationPrintsCalculonsText) {
  const std::string text =
      graph::ReadFile(ACPLAN_TEST_DATA_DIR "/calculon/validation.txt");
  EXPECT_EQ(AcplanOut({"calculon", "llm-validation"}), text);
  EXPECT_EQ(AcplanOut({"calculon", "lv", "-b", ACPLAN_DATA_DIR}), text);
  EXPECT_EQ(
      AcplanOut({"calculon", "lv", "-v"}),
      graph::ReadFile(ACPLAN_TEST_DATA_DIR "/calculon/validation_verbose.txt"));
  ExpectRefused(Acplan({"calculon", "lv", "-b", "."}),
                {"models/megatron-22B.json"});
}

}  // namespace

}  // namespace acplan::cli
