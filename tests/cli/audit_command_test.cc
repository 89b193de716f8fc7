#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

// The command audit: what it prints on configurations of trainers, and what it refuses.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kAuditTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";

class AuditCommandTest : public CliTest {
 protected:
  Outcome Audit(const std::string& name, const std::string& text,
                const std::vector<std::string>& flags = {}) const {
    graph::WriteFile(folder() / name, text);
    std::vector<std::string> command = {"audit", name, "--trace", kAuditTrace};
    command.insert(command.end(), flags.begin(), flags.end());
    return Acplan(command);
  }

  json AuditJson(const std::string& name, const std::string& text,
                 std::vector<std::string> flags = {}) const {
    flags.emplace_back("--json");
    return json::parse(Audit(name, text, flags).out);
  }
};

constexpr char kWholeBlocks[] =
    "base_model: gpt2\nsequence_len: 1024\ngradient_checkpointing: true\n"
    "gradient_checkpointing_kwargs:\n  use_reentrant: false\n";

TEST_F(AuditCommandTest, JudgesAConfiguration) {
  const Outcome outcome = Audit("a.yaml", kWholeBlocks, {"-o", "a.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("a.yaml: axolotl 0.19.0 (axolotl by its "
                                     "keys)\npolicy          12 units"));
  EXPECT_THAT(outcome.out, HasSubstr("peak            6.34 GiB, recomputes"));
  EXPECT_THAT(outcome.out, HasSubstr("\nits language    peak 6.34 GiB"));
  EXPECT_THAT(outcome.out, HasSubstr("\nacplan plan     peak "));
  EXPECT_THAT(outcome.out, HasSubstr("\nsingle change   none of "));
  EXPECT_THAT(outcome.out, HasSubstr("expandable segments"));
  EXPECT_EQ(json::parse(graph::ReadFile(folder() / "a.json")).at("trainer"),
            "axolotl");
}

TEST_F(AuditCommandTest, AgreesWithItself) {
  const json audit = AuditJson("a.yaml", kWholeBlocks);
  EXPECT_EQ(audit.at("format"), "acplan.audit");
  EXPECT_EQ(audit.at("peak_bytes"), audit.at("budget_bytes"));
  EXPECT_EQ(audit.at("units").size(), 12);
  EXPECT_EQ(audit.at("on_device").size(), 4);
  EXPECT_LE(audit.at("plan").at("recompute_ms"),
            audit.at("language").at("recompute_ms"));
  EXPECT_LE(audit.at("language").at("recompute_ms"), audit.at("recompute_ms"));

  // The best change, written down, is audited as it was said to be; after it, and after
  // the best of the language, less remains to gain.
  const json roomy = AuditJson("a.yaml", kWholeBlocks, {"--budget", "10GiB"});
  const json& change = roomy.at("change");
  EXPECT_EQ(change.at("words"), "save aten::addmm too");
  EXPECT_LT(change.at("recompute_ms"), roomy.at("recompute_ms"));
  for (const json& other : {change, roomy.at("language")}) {
    const json changed = AuditJson("b.yaml", other.at("text"),
                                   {"--budget", "10GiB", "--for", "axolotl"});
    EXPECT_EQ(changed.at("peak_bytes"), other.at("peak_bytes"));
    EXPECT_EQ(changed.at("recompute_ms"), other.at("recompute_ms"));
  }
}

TEST_F(AuditCommandTest, JudgesAConfigurationWithoutCheckpoints) {
  const std::string text =
      "from trl import SFTConfig\n"
      "args = SFTConfig(gradient_checkpointing=False)\n";
  const json plain = AuditJson("a.py", text);
  EXPECT_EQ(plain.at("trainer"), "trl");
  EXPECT_EQ(plain.at("peak_bytes"), plain.at("baseline_peak_bytes"));
  EXPECT_EQ(plain.at("recompute_ms"), 0);
  const Outcome small = Audit("a.py", text, {"--budget", "8GiB"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.out, HasSubstr("more than the budget of 8.00 GiB"));
  EXPECT_THAT(small.out, HasSubstr("checkpoint all blocks (the best of 1)"));
  EXPECT_THAT(Audit("a.py", text, {"--budget", "1GiB"}).out,
              HasSubstr("none of 1 reaches the budget"));
}

TEST_F(AuditCommandTest, JudgesOnADevice) {
  const json roomy =
      AuditJson("a.yaml", kWholeBlocks, {"--device-memory", "11GiB"});
  EXPECT_TRUE(roomy.at("fits").get<bool>());
  EXPECT_LE(roomy.at("device").at("least_device_bytes"),
            roomy.at("budget_bytes"));
  EXPECT_LE(roomy.at("change").at("recompute_ms"), roomy.at("recompute_ms"));
  // Its tensors fit in 6.4 GiB, but no run does.
  const Outcome small =
      Audit("a.yaml", kWholeBlocks, {"--device-memory", "6.35GiB"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.out, HasSubstr("more than the device of 6.35 GiB"));
}

TEST_F(AuditCommandTest, JudgesMegatronsParts) {
  const std::string text =
      "--recompute-granularity full --recompute-method uniform "
      "--recompute-num-layers 3\n";
  const json runs = AuditJson("a.sh", text);
  EXPECT_EQ(runs.at("trainer"), "megatron");
  EXPECT_EQ(runs.at("units").size(), 4);
  EXPECT_FALSE(runs.at("stops_early").get<bool>());
  const json parts = AuditJson(
      "b.sh", "--recompute-granularity selective --recompute-modules mlp\n");
  EXPECT_EQ(parts.at("units").size(), 12);
  EXPECT_LT(parts.at("recompute_ms"), runs.at("recompute_ms"));
}

TEST_F(AuditCommandTest, SaysWhatIsWrong) {
  // Dropout in attention is saved, and other dropout runs again.
  EXPECT_THAT(Audit("a.yaml", std::string(kWholeBlocks) +
                                  "selective_checkpointing: true\n")
                  .out,
              HasSubstr("other random numbers than in the forward pass: "
                        "gradients are wrong"));
  EXPECT_THAT(Audit("b.yaml",
                    "base_model: x\ngradient_checkpointing: true\n"
                    "torch_compile: true\n")
                  .out,
              HasSubstr("note: torch_compile: the step is compiled"));
}

TEST_F(AuditCommandTest, RefusesBadInput) {
  const auto complaint = [&](const std::string& name, const std::string& text,
                             const std::vector<std::string>& flags = {}) {
    const Outcome outcome = Audit(name, text, flags);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_EQ(complaint("a.yaml", "gradient_checkpointing: true\n"),
            "acplan: a.yaml: expected keys of one trainer, found those of "
            "none; say which with --for\n");
  EXPECT_THAT(complaint("a.yaml", "a: [\n"), HasSubstr("no YAML"));
  EXPECT_EQ(complaint("a.ini", "x = 1\n"),
            "acplan: a.ini: expected a name that ends in .yaml, .yml, .toml, "
            ".json, .py or .sh; or use --config-format\n");
  EXPECT_THAT(complaint("a.ini", "x = 1\n", {"--config-format", "ini"}),
              HasSubstr("--config-format: expected yaml, toml"));
  EXPECT_THAT(complaint("a.yaml", kWholeBlocks, {"--function", "f"}),
              HasSubstr("expected a Python file"));
  EXPECT_THAT(complaint("a.yaml", kWholeBlocks, {"--budget", "min"}),
              HasSubstr("--budget: expected a size or a share"));
  EXPECT_THAT(complaint("a.yaml", kWholeBlocks, {"--for", "axolotel"}),
              HasSubstr("nearest: axolotl"));
  EXPECT_THAT(complaint("a.yaml", kWholeBlocks, {"--blocks", "*.layers.*"}),
              HasSubstr("--blocks: expected a pattern of modules"));
  EXPECT_THAT(complaint("a.yaml", std::string(kWholeBlocks) +
                                      "selective_checkpointing: {save: "
                                      "[\"aten::adm\"]}\n"),
              HasSubstr("found \"aten::adm\"; nearest: aten::addmm"));
}

}  // namespace
}  // namespace acplan::cli
