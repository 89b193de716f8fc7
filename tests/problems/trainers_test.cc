#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "problems/language/trainer_policy.h"
#include "problems/trainers/config_text.h"
#include "problems/trainers/trainer.h"

// Configurations of trainers: what is written is read back to the same policy, and texts
// as people write them mean what the trainers' documentation says.

namespace acplan::problems {
namespace {

const ConfigNames kNames{
    .blocks = {"layers.0", "layers.1", "layers.2", "layers.3"},
    .operators = {"aten._scaled_dot_product_flash_attention.default",
                  "aten.add.Tensor", "aten.addmm.default", "aten.mm.default",
                  "aten.silu.default", "aten.topk.default"},
    .classes = {"Attention", "Block", "Model"}};

TrainerPolicy Read(std::string_view trainer, std::string_view text) {
  return FindTrainer(trainer, "--for").read(ConfigText(text, "file"), kNames);
}

std::string Complaint(std::string_view trainer, std::string_view text) {
  try {
    Read(trainer, text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::vector<BlockChoice> ChoicesOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kFirst:
      return {{.kind = kind, .end = 1}, {.kind = kind, .end = 3}};
    case BlockKind::kEvery:
      return {{.kind = kind, .period = 2}, {.kind = kind, .period = 3}};
    case BlockKind::kClasses:
      return {{.kind = kind, .classes = {"Block"}},
              {.kind = kind, .classes = {"Attention", "Block"}}};
    case BlockKind::kAll:
    case BlockKind::kNone:
      break;
  }
  return {{.kind = kind}};
}

std::vector<TrainerPolicy> PoliciesOf(const Language& language) {
  std::vector<TrainerPolicy> policies{{}};
  for (const BlockKind kind : language.blocks) {
    for (const BlockChoice& choice : ChoicesOf(kind)) {
      TrainerPolicy policy{.blocks = choice,
                           .product_period = language.product_period,
                           .stops_early = language.stops_early};
      policies.push_back(policy);
      if (!language.sets.empty()) {
        policy.saved = {"aten._scaled_dot_product_flash_attention.default"};
        policies.push_back(policy);
      }
      if (!language.takes_names) continue;
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
  EXPECT_EQ(Read("trl", "SFTConfig(output_dir='x')").blocks.kind,
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

TEST(TrainersTest, NameTheNearestOfAWrongName) {
  EXPECT_EQ(Complaint("axolotl",
                      "gradient_checkpointing: true\n"
                      "selective_checkpointing:\n  save: [\"aten::admm\"]\n"),
            "file: save: expected a name that the trace has there, found "
            "\"aten::admm\"; nearest: aten::addmm");
  EXPECT_EQ(Complaint("lightning",
                      "FSDPStrategy(activation_checkpointing_policy={Blok})"),
            "file: activation_checkpointing_policy: expected a name that the "
            "trace has there, found \"Blok\"; nearest: Block");
  EXPECT_EQ(Complaint("prime-rl", "[model.ac]\nfreq = 0\n"),
            "file: freq: expected a whole number from 1, found \"0\"");
  EXPECT_EQ(Complaint("torch", "BLOCKS = [\"layers.3\"]\nSAVED = set()\n"),
            "file: BLOCKS: expected all blocks, the first ones or every n-th, "
            "found 1 others");
  EXPECT_THROW(FindTrainer("axolot", "--for"), InputError);
}

}  // namespace
}  // namespace acplan::problems
