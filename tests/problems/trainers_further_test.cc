#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "problems/trainers/config.h"
#include "problems/trainers/trainer.h"
#include "tests/problems/trainer_texts.h"

// Configurations of Megatron, NeMo, VeOmni and MaxText.

namespace acplan::problems {
namespace {

using testing::HasSubstr;

constexpr std::string_view kMegatronScript = R"(#!/bin/bash
GPT_ARGS=(
    --num-layers 4 --use-mcore-models
    --recompute-granularity full --recompute-method block
    --recompute-num-layers 3   # of each stage
)
torchrun pretrain_gpt.py ${GPT_ARGS[@]} --tensor-model-parallel-size 2
)";

TEST(TrainersTest, ReadMegatronsScriptsAndWhatHandsThemOn) {
  const auto read = [](std::string_view text, ConfigFormat format) {
    return ReadAs("megatron", text, format);
  };
  const TrainerPolicy first =
      read(kMegatronScript, ConfigFormat::kFlags).policy;
  EXPECT_EQ(first.blocks, (BlockChoice{.kind = BlockKind::kFirst, .end = 3}));
  EXPECT_FALSE(first.stops_early);
  const ConfigReading parts =
      read("--recompute-activations --recompute-modules layernorm core_attn",
           ConfigFormat::kFlags);
  EXPECT_EQ(parts.policy.blocks.parts, std::vector<std::string>{"layernorm"});
  EXPECT_EQ(parts.notes.size(), 3);  // no core_attn, discarded, to the end
  EXPECT_EQ(read("--recompute-activations --recompute-modules mlp layernorm",
                 ConfigFormat::kFlags)
                .policy.blocks.parts,
            (std::vector<std::string>{"layernorm", "mlp"}));
  const ConfigReading yaml = read(
      "model:\n  recompute_granularity: selective\n"
      "  recompute_modules: [moe]\n  cpu_offloading: true\n",
      ConfigFormat::kYaml);
  EXPECT_EQ(yaml.policy.blocks.parts, std::vector<std::string>{"moe"});
  EXPECT_THAT(yaml.notes.front(), HasSubstr("cpu_offloading"));
  EXPECT_EQ(read("cfg.model.recompute_granularity = 'full'\n"
                 "cfg.model.recompute_method = 'uniform'\n"
                 "cfg.model.recompute_num_layers = 2\n",
                 ConfigFormat::kPython)
                .policy.blocks,
            (BlockChoice{.kind = BlockKind::kRuns, .period = 2}));
  EXPECT_EQ(read("--recompute-granularity full --recompute-method block "
                 "--recompute-num-layers 9",
                 ConfigFormat::kFlags)
                .policy.blocks.kind,
            BlockKind::kAll);
  EXPECT_EQ(read("--num-layers 4", ConfigFormat::kFlags).policy.blocks.kind,
            BlockKind::kNone);
  EXPECT_EQ(read("A=(--recompute-granularity full --recompute-method uniform "
                 "--recompute-num-layers 1)",
                 ConfigFormat::kFlags)
                .policy.blocks.kind,
            BlockKind::kAll);
}

TEST(TrainersTest, ReadNemoVeOmniAndMaxText) {
  const TrainerPolicy nemo = Read("nemo",
                                  "distributed:\n  strategy: fsdp2\n"
                                  "  activation_checkpointing: Selective\n");
  EXPECT_EQ(nemo.product_period, 2);
  EXPECT_TRUE(nemo.counts_grouped);
  EXPECT_EQ(nemo.saved,
            (std::vector<std::string>{
                "aten._scaled_dot_product_flash_attention.default",
                "aten.addmm.default", "aten.mm.default", "aten.topk.default"}));
  EXPECT_EQ(Read("nemo", "distributed: {activation_checkpointing: true}\n")
                .blocks.kind,
            BlockKind::kAll);
  EXPECT_EQ(Read("nemo", "step_scheduler: {}\n").blocks.kind, BlockKind::kNone);
  EXPECT_EQ(Read("veomni", "train: {lr: 1}\n").blocks.kind, BlockKind::kAll);
  EXPECT_FALSE(
      Read("veomni",
           "train:\n  gradient_checkpointing:\n    early_stop: false\n")
          .stops_early);
  const ConfigReading maxtext =
      ReadAs("maxtext",
             "remat_policy: custom\nquery_proj: device\nmlpwi_0: offload\n"
             "attention_out: device\nbase_num_decoder_layers: 4\n",
             ConfigFormat::kYaml);
  EXPECT_EQ(maxtext.policy.saved,
            std::vector<std::string>{"attention.q_proj:aten.mm.default"});
  EXPECT_EQ(maxtext.policy.offloaded,
            std::vector<std::string>{"mlp.gate_proj:aten.mm.default"});
  EXPECT_EQ(maxtext.notes.size(), 2);
  EXPECT_EQ(
      Complaint("maxtext", "remat_policy: custom\ndecoder_layer_input: remat"),
      "file: decoder_layer_input: expected device or offload, as layers run "
      "again from it, found remat");
  EXPECT_EQ(Read("maxtext", "remat_policy: qkv_proj_offloaded\n").offloaded,
            std::vector<std::string>{"attention.q_proj:aten.mm.default"});
  EXPECT_EQ(Read("maxtext", "remat_policy: save_qkv_proj\n").saved,
            std::vector<std::string>{"attention.q_proj:aten.mm.default"});
  EXPECT_TRUE(Read("maxtext", "run_name: x\n").saved.empty());
}

// A script's `model` is a path, then a model, and never the table that other trainers'
// keys are in.
TEST(TrainersTest, ReadScriptsThatSetANameTwice) {
  const std::string script =
      "model = \"org/base\"\nmodel = AutoModel.from_pretrained(model)\n"
      "from trl import SFTConfig\nargs = SFTConfig(output_dir=\"x\")\n";
  EXPECT_EQ(
      DetectTrainer(Config(script, "file", ConfigFormat::kPython), "--for")
          .name,
      "trl");
  EXPECT_EQ(Read("trl", script).blocks.kind, BlockKind::kAll);
  EXPECT_EQ(
      Complaint("trl", script + "b = SFTConfig(gradient_checkpointing=False)\n"
                                "c = SFTConfig(gradient_checkpointing=True)\n"),
      "file: gradient_checkpointing: expected one value in the file, or "
      "--function NAME, found different values");
}

TEST(TrainersTest, OfLargeModelsAreDetectedByTheirKeys) {
  const auto detect = [](std::string_view text, ConfigFormat format) {
    return std::string(
        DetectTrainer(Config(text, "file", format), "--for").name);
  };
  EXPECT_EQ(detect(kMegatronScript, ConfigFormat::kFlags), "megatron");
  EXPECT_EQ(detect("remat_policy: full\n", ConfigFormat::kYaml), "maxtext");
  EXPECT_EQ(detect("step_scheduler: {}\ndistributed: {strategy: ddp}\n",
                   ConfigFormat::kYaml),
            "nemo");
  EXPECT_EQ(detect("train: {gradient_checkpointing: {enable: true}}\n",
                   ConfigFormat::kYaml),
            "veomni");
}

TEST(TrainersTest, OfLargeModelsNameTheNearestOfAWrongName) {
  EXPECT_THAT(Complaint("megatron",
                        "--recompute-granularity selective "
                        "--recompute-modules layer_norm"),
              HasSubstr("recompute_modules: expected one of core_attn, "
                        "moe_act, layernorm, "));
  EXPECT_THAT(Complaint("megatron",
                        "--recompute-granularity selective "
                        "--recompute-modules layer_norm"),
              HasSubstr("found \"layer_norm\"; nearest: layernorm"));
  EXPECT_THAT(Complaint("megatron",
                        "--recompute-granularity selective "
                        "--recompute-modules moe_act"),
              HasSubstr("expected moe_act beside moe_grouped_gemm alone"));
  EXPECT_THAT(Complaint("megatron",
                        "--recompute-granularity selective --moe-grouped-gemm "
                        "--recompute-modules moe_act"),
              HasSubstr("expected parts that are modules"));
  EXPECT_EQ(Complaint("axolotl",
                      "gradient_checkpointing: true\n"
                      "gradient_checkpointing_kwargs: 7\n"),
            "file: gradient_checkpointing_kwargs: expected keys and values, "
            "found 7");
  EXPECT_EQ(Complaint("accelerate", "fsdp_config: 3\n"),
            "file: fsdp_config: expected keys and values, found 3");
  EXPECT_EQ(Complaint("prime-rl", "[model]\nac = 3\n"),
            "file: model.ac: expected keys and values, found 3");
  EXPECT_EQ(Complaint("trl", std::string_view("a\0b", 3)),
            "file: expected text, found a byte of value 0");
  EXPECT_THAT(Complaint("veomni",
                        "train: {gradient_checkpointing: "
                        "{gradient_checkpoint_layers: [0]}}\n"),
              HasSubstr("found gradient_checkpoint_layers"));
  EXPECT_EQ(Read("trl",
                 "a = SFTConfig(gradient_checkpointing=True,\n"
                 "gradient_checkpointing_kwargs=dict(selective=True))")
                .saved.size(),
            1);
  EXPECT_EQ(Complaint("megatron", "--recompute-granularity ful"),
            "file: recompute_granularity: expected one of full, selective, "
            "found \"ful\"; nearest: full");
  EXPECT_THAT(Complaint("megatron", "--recompute-granularity full"),
              HasSubstr("recompute_method: expected one of block, uniform"));
  EXPECT_THAT(
      Complaint("nemo", "distributed: {activation_checkpointing: select}\n"),
      HasSubstr("found \"select\"; nearest: selective"));
  EXPECT_THAT(Complaint("maxtext",
                        "remat_policy: custom\nmlpwi0: device\nrun_name: x\n"),
              HasSubstr("found \"mlpwi0\"; nearest: mlpwi"));
  EXPECT_THAT(
      Complaint("transformers",
                "args = TrainingArguments(gradient_checkpointing=True, "
                "gradient_checkpointing_kwargs={'every_n_layer': 2})\n"),
      HasSubstr("found \"every_n_layer\"; nearest: every_n_layers"));
  EXPECT_THAT(Complaint("axolotl",
                        "gradient_checkpointing: true\n"
                        "selective_checkpointing: {save: [attentiom]}\n"),
              HasSubstr("found \"attentiom\"; nearest: attention"));
  for (const char* strategy : {"ddp", "megatron_fsdp", "fsdp3"}) {
    EXPECT_THAT(
        Complaint("nemo", fmt::format("distributed: {{strategy: {}, "
                                      "activation_checkpointing: true}}\n",
                                      strategy)),
        HasSubstr("distributed.strategy: expected "));
  }
  EXPECT_EQ(Read("nemo",
                 "distributed: {strategy: ddp, "
                 "activation_checkpointing: selective}\n")
                .blocks.kind,
            BlockKind::kAll);
  EXPECT_THAT(Complaint("nemo",
                        "distributed: {activation_checkpointing: full, "
                        "activation_checkpointing_scope: vision}\n"),
              HasSubstr("activation_checkpointing_scope: expected all"));
  EXPECT_THAT(Complaint("maxtext", "remat_policy: save_out\n"),
              HasSubstr("found \"save_out\"; nearest: save_out_proj"));
  EXPECT_THAT(Complaint("maxtext", "remat_policy: custom\ncontext: devise\n"),
              HasSubstr("context: expected one of device, offload, remat, "
                        "found \"devise\"; nearest: device"));
  EXPECT_THAT(
      Complaint("veomni",
                "train: {gradient_checkpointing: {early_stopp: true}}\n"),
      HasSubstr("found \"early_stopp\"; nearest: early_stop"));
}

}  // namespace
}  // namespace acplan::problems
