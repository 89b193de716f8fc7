#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "problems/language/ties.h"
#include "problems/language/trainer_policy.h"
#include "problems/trainers/config.h"
#include "problems/trainers/trainer.h"
#include "tests/problems/trainer_texts.h"

// Configurations of trainers: what is written is read back to the same policy, and texts
// as people write them mean what the trainers' documentation says.

namespace acplan::problems {
namespace {

using testing::HasSubstr;

std::vector<BlockChoice> ChoicesOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kFirst:
      return {{.kind = kind, .end = 1}, {.kind = kind, .end = 3}};
    case BlockKind::kRange:
      return {{.kind = kind, .begin = 1, .end = 2},
              {.kind = kind, .begin = 1, .end = 3}};
    case BlockKind::kEvery:
      return {{.kind = kind, .period = 2}, {.kind = kind, .period = 3}};
    case BlockKind::kClasses:
      return {{.kind = kind, .classes = {"Block"}},
              {.kind = kind, .classes = {"Attention", "Block"}}};
    case BlockKind::kRuns:
      return {{.kind = kind, .period = 2}, {.kind = kind, .period = 3}};
    case BlockKind::kParts:
      return {{.kind = kind, .parts = {"mlp"}},
              {.kind = kind, .parts = {"layernorm"}},
              {.kind = kind, .parts = {"layernorm", "mlp", "moe"}}};
    case BlockKind::kAll:
    case BlockKind::kNone:
      break;
  }
  return {{.kind = kind}};
}

// Returns the operators that one of the patterns matches.
std::vector<std::string> MatchesOf(const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& names) {
  std::vector<std::string> matches;
  for (const std::string& name : names) {
    if (MatchesAny(name, patterns)) matches.push_back(name);
  }
  return matches;
}

std::vector<TrainerPolicy> PoliciesOf(const Language& language) {
  std::vector<TrainerPolicy> policies;
  if (language.may_have_no_unit) policies.emplace_back();
  for (const BlockKind kind : language.blocks) {
    for (const BlockChoice& choice : ChoicesOf(kind)) {
      TrainerPolicy policy = language.Saving(choice);
      policies.push_back(policy);
      if (!language.sets.empty()) {
        policy.saved = MatchesOf(language.sets.front(), kNames.operators);
        policies.push_back(policy);
      }
      for (const NamedValue& value : language.values) {
        policy.saved = MatchesOf(value.patterns, kNames.places);
        policies.push_back(policy);
        if (!language.may_offload) continue;
        TrainerPolicy offloading = policy;
        std::swap(offloading.saved, offloading.offloaded);
        policies.push_back(offloading);
      }
      if (!language.takes_names || !language.values.empty()) continue;
      policy.saved = {"aten._scaled_dot_product_flash_attention.default",
                      "aten.add.Tensor", "aten.mm.default"};
      if (!language.always_saved.empty()) {
        policy.saved.emplace_back("aten.topk.default");
      }
      policies.push_back(policy);
    }
  }
  return policies;
}

TEST(TrainersTest, ReadWhatTheyWrite) {
  for (const Trainer& trainer : Trainers()) {
    SCOPED_TRACE(trainer.name);
    for (const TrainerPolicy& policy : PoliciesOf(trainer.language)) {
      const std::string text = trainer.write(policy, kNames);
      EXPECT_EQ(Read(trainer.name, text), policy) << text;
      EXPECT_EQ(Read(trainer.name, "# gradient_checkpointing: 7\n" + text),
                policy);
    }
  }
}

TEST(TrainersTest, ReadWhatPeopleWrite) {
  const TrainerPolicy attention = Read("axolotl",
                                       "base_model: x\n"
                                       "gradient_checkpointing: true  # on\n"
                                       "selective_checkpointing: true\n");
  EXPECT_EQ(attention.saved, (std::vector<std::string>{
                                 "aten._scaled_dot_product_flash_attention."
                                 "default"}));
  const TrainerPolicy parts =
      Read("axolotl",
           "gradient_checkpointing: true\n"
           "selective_checkpointing:\n  save: [attention, 'aten::add']\n");
  EXPECT_EQ(parts.saved.size(), 3);  // add.Tensor and addmm among them
  EXPECT_EQ(Read("trl", "a = SFTConfig(output_dir='x')").blocks.kind,
            BlockKind::kAll);
  EXPECT_EQ(Read("transformers", "TrainingArguments()").blocks.kind,
            BlockKind::kNone);
  const TrainerPolicy prime =
      Read("prime-rl", "[model.ac]\nfreq = 3\nmode = \"selective\"\n");
  EXPECT_EQ(prime.blocks.period, 3);
  EXPECT_EQ(prime.saved,
            (std::vector<std::string>{
                "aten._scaled_dot_product_flash_attention.default",
                "aten.addmm.default", "aten.mm.default", "aten.topk.default"}));
}

// Whole files, as people have them, with all the keys that are no business of a reader.
constexpr std::string_view kAxolotlFile = R"(base_model: org/model
load_in_4bit: true
datasets:
  - path: org/data
    type: alpaca   # save: [everything]
    message_property_mappings: {role: role, content: content}
adapter: qlora
lora_target_modules: [q_proj, v_proj]
sequence_len: 4096
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
selective_checkpointing:
  save:
    - attention
    - "aten::silu"
flash_attention: yes
special_tokens:
  pad_token: "<|end_of_text|>"
)";

constexpr std::string_view kPrimeRlFile = R"(max_steps = 100
seq_len = 2048
[wandb]
project = "p"
[trainer.model]
impl = "auto"
[trainer.model.ac]
freq = 2
[trainer.model.ac_offloading]
max_inflight_activations = 1
[trainer.model.compile]
[trainer.optim]
lr = 1e-6
[[orchestrator.train.env]]
id = "reverse-text"
)";

constexpr std::string_view kRegistry = R"py(
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer


def tiny(attention: str = "sdpa", *, steps: int = 10) -> Trainer.Config:
    """A docstring: activation_checkpoint=FullAC.Config()"""
    return Trainer.Config(
        training=TrainingConfig(steps=steps),  # activation_checkpoint=None
        activation_checkpoint=SelectiveAC.Config(),
    )


def tiny_compiled() -> Trainer.Config:
    config = tiny()
    config.compile.enable = True
    return config


def large() -> Trainer.Config:
    config = tiny(steps=3)
    config.activation_checkpoint = FullAC.Config(
        preserve_rng_state=False,
    )
    return config
)py";

TEST(TrainersTest, ReadWholeFiles) {
  const ConfigReading axolotl =
      ReadAs("axolotl", kAxolotlFile, ConfigFormat::kYaml);
  EXPECT_EQ(axolotl.policy.saved,
            (std::vector<std::string>{
                "aten._scaled_dot_product_flash_attention.default",
                "aten.silu.default"}));
  EXPECT_TRUE(axolotl.policy.stops_early);
  EXPECT_TRUE(axolotl.notes.empty());

  const ConfigReading prime =
      ReadAs("prime-rl", kPrimeRlFile, ConfigFormat::kToml);
  EXPECT_EQ(prime.policy.blocks.period, 2);
  EXPECT_EQ(prime.notes.size(), 2);  // offloading and compilation

  const auto titan = [](std::string_view function) {
    return ReadAs("torchtitan", kRegistry, ConfigFormat::kPython, function);
  };
  EXPECT_EQ(titan("tiny").policy.saved.size(), 4);
  EXPECT_EQ(titan("tiny_compiled").policy, titan("tiny").policy);
  EXPECT_TRUE(titan("tiny").notes.empty());
  EXPECT_TRUE(titan("large").policy.saved.empty());
  EXPECT_FALSE(titan("large").policy.stops_early);
}

TEST(TrainersTest, ReadFlagsAndOtherFormats) {
  const ConfigReading trl =
      ReadAs("trl",
             "#!/bin/sh\ntrl sft --model_name_or_path m \\\n  "
             "--gradient-checkpointing "
             "--gradient_checkpointing_kwargs '{\"selective\": true}' # --x\n",
             ConfigFormat::kFlags);
  EXPECT_EQ(trl.policy.saved.size(), 1);
  EXPECT_EQ(
      ReadAs("trl", "sft --no-gradient_checkpointing", ConfigFormat::kFlags)
          .policy.blocks.kind,
      BlockKind::kNone);
  EXPECT_EQ(ReadAs("prime-rl", "train --model.ac.freq=3", ConfigFormat::kFlags)
                .policy.blocks.period,
            3);
  const ConfigReading transformers =
      ReadAs("transformers",
             R"({"output_dir": "x", "gradient_checkpointing": true,
                 "gradient_checkpointing_kwargs": {"every_n_layers": 2}})",
             ConfigFormat::kJson);
  EXPECT_EQ(transformers.policy.blocks.period, 2);
  const ConfigReading script = ReadAs(
      "trl",
      "args = parser.parse()\n"
      "args.gradient_checkpointing_kwargs = {'use_reentrant': True}\n"
      "model = load(use_cache=False if args.gradient_checkpointing else True)",
      ConfigFormat::kPython);
  EXPECT_EQ(script.policy.blocks.kind, BlockKind::kAll);
  EXPECT_FALSE(script.policy.stops_early);
  // FSDP's own checkpoints, with the default classes and with others.
  const std::string fsdp =
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_activation_checkpointing: "
      "true\n";
  EXPECT_EQ(
      ReadAs("accelerate", fsdp, ConfigFormat::kYaml).policy.blocks.classes,
      std::vector<std::string>{"Block"});
  EXPECT_EQ(
      ReadAs("accelerate",
             fsdp + "  fsdp_transformer_layer_cls_to_wrap: Attention, Model\n",
             ConfigFormat::kYaml)
          .policy.blocks.classes,
      (std::vector<std::string>{"Attention", "Model"}));
  EXPECT_EQ(
      ReadAs("torchtitan", "[activation_checkpoint]\nmode = \"full\"\n[job]\n",
             ConfigFormat::kToml)
          .policy.saved.size(),
      0);
}

TEST(TrainersTest, SayWhatIsNotSimulated) {
  EXPECT_THAT(Complaint("axolotl",
                        "gradient_checkpointing: true\n"
                        "activation_offloading: true\n"),
              HasSubstr("activation_offloading: expected false or "
                        "hidden_states"));
  EXPECT_THAT(Complaint("axolotl", "gradient_checkpointing: offload\n"),
              HasSubstr("expected true or false, as offloading"));
  EXPECT_THAT(
      Complaint("axolotl", "fsdp_config:\n  activation_checkpointing: true\n"),
      HasSubstr("fsdp_config: expected no checkpoints by FSDP"));
  EXPECT_THAT(Complaint("torchtitan",
                        "activation_checkpoint = MemoryBudgetAC.Config()"),
              HasSubstr("acplan.memory_budgets"));
  EXPECT_THAT(Complaint("torchtitan",
                        "activation_checkpoint = SelectiveAC.Config("
                        "force_recompute_mm_shapes_by_fqns=['attention'])"),
              HasSubstr("recomputed by shape"));
  EXPECT_THAT(Complaint("prime-rl",
                        "[model.ac]\nmode = \"selective\"\n"
                        "targets = [\"norm\"]\n"),
              HasSubstr("found norm"));
  EXPECT_THAT(Complaint("trl", "x = dict(gradient_checkpointing=args.on)"),
              HasSubstr("gradient_checkpointing: expected true or false, "
                        "found \"args.on\""));
  EXPECT_THAT(Complaint("torchtitan", kRegistry),
              HasSubstr("activation_checkpoint: expected one value in the "
                        "file, or --function NAME"));
  EXPECT_EQ(
      ReadAs("axolotl", "gradient_checkpointing: true\ntorch_compile: true\n",
             ConfigFormat::kYaml)
          .notes.size(),
      3);  // and use_reentrant, by default
}

TEST(TrainersTest, RefuseBrokenFiles) {
  EXPECT_EQ(Complaint("axolotl", "a: [1, 2\nb: 3\n"),
            "file: line 2: no YAML: end of sequence flow not found");
  EXPECT_THAT(Complaint("axolotl", "- a\n- b\n"),
              HasSubstr("file: expected keys and values, found"));
  EXPECT_THAT(Complaint("prime-rl", "[model.ac\n"),
              HasSubstr("file: line 1: no TOML: "));
  EXPECT_EQ(Complaint("trl", "x = (1,\ny = 2\n"),
            "file: line 1: expected a bracket that closes \"(\"");
  EXPECT_EQ(Complaint("trl", "x = 'abc\n"),
            "file: line 1: expected a text that ends");
  EXPECT_THAT(Complaint("transformers", "{\"a\": }", ConfigFormat::kJson),
              HasSubstr("file: "));
  EXPECT_EQ(Complaint("trl", "--a 'b", ConfigFormat::kFlags),
            "file: expected a closing '");
  std::string bomb = "a0: &a0 [1, 1]\n";
  for (int k = 1; k < 40; ++k) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", k, k - 1);
  }
  EXPECT_THAT(Complaint("axolotl", bomb), HasSubstr("expected at most 100000"));
  EXPECT_THAT(Complaint("axolotl", "gradient_checkpointing: [true]\n"),
              HasSubstr("expected a single value, found [true]"));
  try {
    ReadAs("torchtitan", kRegistry, ConfigFormat::kPython, "tiny_compile");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "file: expected a file with the function \"tiny_compile\"; "
                 "nearest: tiny_compiled");
  }
}

TEST(TrainersTest, AreDetectedByTheirKeys) {
  const auto detect = [](std::string_view text, ConfigFormat format) {
    try {
      return std::string(
          DetectTrainer(Config(text, "file", format), "--for").name);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(detect(kAxolotlFile, ConfigFormat::kYaml), "axolotl");
  EXPECT_EQ(detect(kPrimeRlFile, ConfigFormat::kToml), "prime-rl");
  EXPECT_EQ(detect(kRegistry, ConfigFormat::kPython), "torchtitan");
  EXPECT_EQ(detect("from trl import SFTConfig", ConfigFormat::kPython), "trl");
  EXPECT_EQ(detect("from transformers import TrainingArguments",
                   ConfigFormat::kPython),
            "transformers");
  EXPECT_EQ(detect("import lightning as L", ConfigFormat::kPython),
            "lightning");
  EXPECT_EQ(detect("base_model: m\nfsdp_config: {activation_checkpointing: "
                   "true}\n",
                   ConfigFormat::kYaml),
            "accelerate");
  EXPECT_EQ(
      detect("gradient_checkpointing: true\n", ConfigFormat::kYaml),
      "file: expected keys of one trainer, found those of none; say which "
      "with --for");
  EXPECT_EQ(
      detect("import torchtitan\nimport lightning\n", ConfigFormat::kPython),
      "file: expected keys of one trainer, found those of lightning and "
      "torchtitan; say which with --for");
}

TEST(TrainersTest, NameTheNearestOfAWrongName) {
  EXPECT_EQ(Complaint("axolotl",
                      "gradient_checkpointing: true\n"
                      "selective_checkpointing:\n  save: [\"aten::admm\"]\n"),
            "file: selective_checkpointing.save: expected a name that the "
            "trace has there, found "
            "\"aten::admm\"; nearest: aten::addmm");
  EXPECT_EQ(Complaint("lightning",
                      "FSDPStrategy(activation_checkpointing_policy={Blok})"),
            "file: activation_checkpointing_policy: expected a name that the "
            "trace has there, found \"Blok\"; nearest: Block");
  EXPECT_EQ(Complaint("prime-rl", "[model.ac]\nfreq = 0\n"),
            "file: model.ac.freq: expected a whole number from 1, found 0");
  EXPECT_EQ(
      Complaint("torch",
                "BLOCKS = [\"layers.1\", \"layers.3\"]\nSAVED = set()\n"),
      "file: BLOCKS: expected all blocks, neighbours or every n-th, found "
      "2 others");
  EXPECT_THROW(FindTrainer("axolot", "--for"), InputError);
}

}  // namespace
}  // namespace acplan::problems
