#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/training_report.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

const TrainingSystems& KnownSystems() {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  return kSystems;
}

ModelShape Llama() {
  return ReadHuggingFaceConfig(ACPLAN_DATA_DIR
                               "/training/models/llama-3.1-8b.json");
}

ModelShape DeepSeek() {
  return ReadHuggingFaceConfig(ACPLAN_DATA_DIR
                               "/training/models/deepseek-v3.json");
}

TrainingJob SettingsJob(const ModelShape& shape, const std::string& text) {
  return JobOfSettings(shape, ParseStrategySettings(text, "s.json"),
                       KnownSystems());
}

// The three dialects of one strategy.
TEST(StrategySettings, DialectsSayTheSame) {
  const TrainingJob ours = SettingsJob(
      Llama(),
      R"({"gpu": "h100", "gpus": 64, "seq": 8192, "gbs": 128, "mbs": 1, "tp": 4,
          "pp": 2, "vp": 4, "cp": 2, "zero": 1, "recompute": "full:2",
          "grad_dtype": "bf16", "precision": "fp8_blockwise",
          "software": "Megatron-Bridge"})");
  const TrainingJob megatron = SettingsJob(
      Llama(),
      R"({"gpu": "H100-SXM5-80GB", "world-size": 64, "seq-length": 8192,
          "global-batch-size": 128, "micro-batch-size": 1,
          "tensor-model-parallel-size": 4, "sequence-parallel": true,
          "pipeline-model-parallel-size": 2,
          "num-layers-per-virtual-pipeline-stage": 4,
          "context-parallel-size": 2, "use-distributed-optimizer": true,
          "recompute-granularity": "full", "recompute-method": "block",
          "recompute-num-layers": 2, "main-grads-dtype": "bf16",
          "fp8-format": "e4m3", "fp8-recipe": "blockwise"})");
  EXPECT_DOUBLE_EQ(PredictStepTime(ours).Total(),
                   PredictStepTime(megatron).Total());
  EXPECT_DOUBLE_EQ(PredictStepMemory(ours).Worst().Total(),
                   PredictStepMemory(megatron).Worst().Total());
  const TrainingJob plain = SettingsJob(
      Llama(),
      R"({"gpu": "h100", "gpus": 64, "seq": 8192, "gbs": 128, "mbs": 2,
          "zero": 3, "recompute": "selective:op", "software": "torchtitan"})");
  const TrainingJob titan = SettingsJob(Llama(),
                                        R"({"gpu": "H100", "gpus": 64,
          "training": {"seq_len": 8192, "local_batch_size": 2},
          "parallelism": {"data_parallel_shard_degree": -1,
                          "tensor_parallel_degree": 1},
          "activation_checkpoint": {"mode": "selective",
                                    "selective_ac_option": "op"}})");
  EXPECT_DOUBLE_EQ(PredictStepTime(plain).Total(),
                   PredictStepTime(titan).Total());
  EXPECT_EQ(titan.strategy.fsdp, 64);
}

// torchtitan's mode "selective" with a number.
TEST(StrategySettings, EachNthLayerMayRunAgain) {
  const auto with = [](const std::string& settings) {
    return SettingsJob(
        Llama(), R"({"gpu": "H100", "gpus": 64, "pp": 2, )" + settings + "}");
  };
  const TrainingJob titan = with(
      R"("activation_checkpoint": {"mode": "selective",
                                   "selective_ac_option": "3"},
         "software": "torchtitan")");
  const TrainingJob third =
      with(R"("recompute": "every:3", "software": "torchtitan")");
  const TrainingJob five =
      with(R"("recompute": "full:5", "software": "torchtitan")");
  EXPECT_EQ(titan.strategy.every_layers, 3);
  // Five of the 16 layers of a stage.
  for (const TrainingJob& job : {titan, five}) {
    EXPECT_DOUBLE_EQ(PredictStepTime(job).Total(),
                     PredictStepTime(third).Total());
    EXPECT_DOUBLE_EQ(PredictStepMemory(job).Worst().Total(),
                     PredictStepMemory(third).Worst().Total());
  }
  EXPECT_EQ(ReportOfTraining(third).flops.hardware,
            ReportOfTraining(five).flops.hardware);
}

TEST(StrategySettings, HiddenAndAttentionDropoutAreTwo) {
  const auto drops = [](const std::string& settings) {
    const TrainingStrategy s =
        SettingsJob(Llama(), R"({"gpu": "H100", "gpus": 64, )" + settings + "}")
            .strategy;
    return std::vector{s.drops_hidden, s.drops_scores, s.drops_embedding};
  };
  EXPECT_EQ(drops(R"("seq": 8192)"), (std::vector{false, false, false}));
  EXPECT_EQ(drops(R"("dropout": 0.1)"), (std::vector{true, true, true}));
  EXPECT_EQ(drops(R"("hidden-dropout": 0.1)"),
            (std::vector{true, false, true}));
  EXPECT_EQ(drops(R"("attention-dropout": 0.1)"),
            (std::vector{false, true, false}));
  EXPECT_EQ(drops(R"("resid_pdrop": 0.1, "embd_pdrop": 0)"),
            (std::vector{true, false, false}));
  EXPECT_EQ(drops(R"("attention_probs_dropout_prob": 0.1,
                     "hidden_dropout_prob": 0)"),
            (std::vector{false, true, false}));
  EXPECT_EQ(drops(R"("dropout": 0.1, "attention_dropout": 0)"),
            (std::vector{true, false, true}));
}

// The configuration supplies values that settings lack.
TEST(StrategySettings, TakeTheDropoutsOfTheConfiguration) {
  ModelShape shape = Llama();
  shape.attention_dropout = .1;
  const std::string gpus = R"({"gpu": "H100", "gpus": 64)";
  EXPECT_TRUE(SettingsJob(shape, gpus + "}").strategy.drops_scores);
  EXPECT_FALSE(SettingsJob(shape, gpus + "}").strategy.drops_hidden);
  EXPECT_FALSE(
      SettingsJob(shape, gpus + R"(, "attn_pdrop": 0})").strategy.drops_scores);
}

// Settings of one program have names in another, too: HSDP, stages, types of
// states.
TEST(StrategySettings, FurtherKeysSayTheSame) {
  const TrainingJob titan = SettingsJob(Llama(), R"({"gpu": "H100", "gpus": 64,
      "software": "torchtitan", "local_batch_size": 1,
      "parallelism": {"data_parallel_replicate_degree": 8,
                      "data_parallel_shard_degree": 8}})");
  EXPECT_EQ(titan.strategy.zero, 3);
  EXPECT_EQ(titan.strategy.fsdp, 8);
  EXPECT_EQ(titan.strategy.optimizer_copies, 8);
  const TrainingJob megatron =
      SettingsJob(Llama(), R"({"gpu": "H100", "gpus": 64,
      "data-parallel-sharding-strategy": "optim_grads_params",
      "num-distributed-optimizer-instances": 8, "software": "torchtitan",
      "global-batch-size": 64})");
  EXPECT_DOUBLE_EQ(PredictStepTime(megatron).Total(),
                   PredictStepTime(titan).Total());
  const TrainingJob stages = SettingsJob(Llama(), R"({"gpu": "H100", "gpus": 64,
      "pp": 4, "num-layers-in-first-pipeline-stage": 7,
      "decoder-last-pipeline-num-layers": 5, "exp-avg-dtype": "bf16",
      "exp-avg-sq-dtype": "fp8", "main-params-dtype": "fp16"})");
  EXPECT_EQ(stages.strategy.first_layers, 7);
  EXPECT_EQ(stages.strategy.last_layers, 5);
  EXPECT_DOUBLE_EQ(stages.strategy.optimizer_bytes, 2 + 1 + 2);
  const TrainingJob vee = SettingsJob(Llama(), R"({"gpu": "H100", "gpus": 64,
      "pipeline_parallel_degree": 4, "gbs": 256,
      "pipeline_parallel_schedule": "ZBVZeroBubble"})");
  EXPECT_EQ(vee.strategy.schedule, PipelineSchedule::kZeroBubbleV);
  EXPECT_EQ(vee.strategy.chunks, 2);
}

// Each has what its row of data/devices offers, and its own sizes.
TEST(StatedJob, KnowsTheGpusOfToday) {
  const auto gpu_of = [](std::string_view name) {
    return SettingsJob(Llama(),
                       fmt::format(R"({{"gpu": "{}", "gpus": 8}})", name))
        .cluster.gpu;
  };
  EXPECT_EQ(gpu_of("a800").nvlink_rate, 200e9);
  EXPECT_EQ(gpu_of("H800").nvlink_rate, 200e9);
  EXPECT_EQ(gpu_of("h20").multiprocessors, 78);
  EXPECT_EQ(gpu_of("MI325X").memory_rate, 6e12);
  EXPECT_GT(gpu_of("MI355X").Rate(ProductPrecision::kMxfp8),
            gpu_of("MI325X").Rate(ProductPrecision::kFp8Current));
  EXPECT_EQ(gpu_of("RTX PRO 6000").name, "RTX-PRO-6000");
  EXPECT_EQ(gpu_of("rtx-pro-6000").nvlink_domain, 1);
}

// The figures of a report beside times, worked out by hand.
TEST(TrainingReport, FlopsAreThoseOfTheConvention) {
  TrainingJob job = SettingsJob(
      Llama(), R"({"gpu": "h100", "gpus": 8, "seq": 8192, "gbs": 8})");
  const double matrices =
      32 * (4096 * (32 + 16) * 128.0 + 4096 * 4096.0 + 3 * 4096 * 14336.0) +
      4096 * 128256.0;
  const double attention = 32 * 2 * 4096 * 8192.0;  // the causal half
  const double forward = 8 * 8192 * (2 * matrices + attention);
  const IterationFlops none = CountIterationFlops(job);
  EXPECT_NEAR(none.model / (3 * forward), 1, 1e-9);
  EXPECT_DOUBLE_EQ(none.hardware, none.model);
  job.strategy.recomputation = Recomputation::kFull;
  const IterationFlops full = CountIterationFlops(job);
  EXPECT_DOUBLE_EQ(full.model, none.model);
  const double logits = 8 * 8192 * 2 * 4096 * 128256.0;
  EXPECT_NEAR(full.hardware / (4 * forward - logits), 1, 1e-9);
}

TEST(TrainingReport, FlopsDoNotDependOnHowTheyAreSpread) {
  const double one =
      CountIterationFlops(
          SettingsJob(DeepSeek(), R"({"gpu": "h800", "gpus": 2048,
          "gbs": 4096})"))
          .model;
  const TrainingJob spread = SettingsJob(
      DeepSeek(), R"({"gpu": "h800", "gpus": 2048, "gbs": 4096, "ep": 64,
          "pp": 16, "dispatcher": "deepep", "attention": "unfused"})");
  EXPECT_DOUBLE_EQ(CountIterationFlops(spread).model, one);
}

TEST(TrainingReport, ExposedKindsAreAllThatIsSent) {
  const TrainingReport report = ReportOfTraining(SettingsJob(
      DeepSeek(), R"({"gpu": "h800", "gpus": 2048, "gbs": 4096, "ep": 64,
          "pp": 16, "tp": 2, "cp": 2})"));
  const StepTime& time = report.time;
  EXPECT_GT(time.exposed.tensor, 0);
  EXPECT_GT(time.exposed.context, 0);
  EXPECT_GT(time.exposed.expert, 0);
  EXPECT_GT(time.messages, 0);
  EXPECT_NEAR(time.exposed.Total() + time.messages, time.communication,
              1e-12 * time.communication);
}

struct WrongSetting {
  std::string name;
  std::string settings;  // beside gpu and gpus of an example
  std::string complaint;
  bool has_experts = false;
};

class WrongSettings : public ::testing::TestWithParam<WrongSetting> {};

// One line that names the setting and the values that would do.
TEST_P(WrongSettings, AreRefusedForAReason) {
  const WrongSetting& wrong = GetParam();
  try {
    SettingsJob(wrong.has_experts ? DeepSeek() : Llama(), wrong.settings);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(wrong.complaint));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

WrongSetting Dense(std::string name, const std::string& more,
                   std::string complaint) {
  return {std::move(name), R"({"gpu": "H100", "gpus": 64, )" + more + "}",
          std::move(complaint)};
}

WrongSetting Moe(std::string name, const std::string& more,
                 std::string complaint) {
  WrongSetting wrong = Dense(std::move(name), more, std::move(complaint));
  wrong.has_experts = true;
  return wrong;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongSettings,
    ::testing::Values(
        WrongSetting{"NoJson", "gpus: 8", "s.json"},
        WrongSetting{"NoObject", "[1]", "expected an object of settings"},
        WrongSetting{"NoGpu", R"({"gpus": 8})", "gpu: expected a GPU"},
        WrongSetting{"NoGpus", R"({"gpu": "H100"})",
                     "gpus: expected the number of GPUs"},
        WrongSetting{"UnknownGpu", R"({"gpu": "TPU", "gpus": 8})",
                     "gpu: expected one of T4"},
        Dense("UnknownKey", R"("tensor_model_paralel_size": 2)",
              "near: tensor_model_parallel_size"),
        Dense("ValueOfNoKind", R"("tp": [1])", "s.json: tp"),
        Dense("SaidTwice", R"("tp": 2, "tensor_parallel_degree": 4)",
              R"(tp: expected "4" as of s.json: tensor_parallel_degree)"),
        Dense("Zero", R"("tp": 0)",
              R"(tp: expected a whole number from 1 to 2147483647, found "0")"),
        Dense("Half", R"("tp": 1.5)", "tp: expected a whole number"),
        Dense("Word", R"("pp": "two")", "pp: expected a whole number"),
        Dense("Negative", R"("seq-length": -4)",
              "seq-length: expected a whole number"),
        Dense("Huge", R"("gbs": 99999999999)", "gbs: expected a whole number"),
        Dense("Flag", R"("sequence-parallel": "maybe")",
              "expected one of false, true"),
        Dense("Degrees", R"("tp": 6)",
              "tp x pp x cp: expected a divisor of 64 (gpus), found 6 x 1 x 1"),
        Dense("MoreThanGpus", R"("tp": 8, "pp": 16)", "found 8 x 16 x 1"),
        Dense("Overflow", R"("tp": 2097152, "pp": 2097152, "cp": 4194304)",
              "expected a divisor of 64 (gpus), found 2097152 x 2097152"),
        Dense("HugeMicrobatch", R"("mbs": 2147483647)",
              "mbs: expected a whole number from 1 to 1048576"),
        Dense("Heads", R"("tp": 64)", "tp: expected a divisor of 32 (heads)"),
        Dense("Batch", R"("gbs": 100)", "dp: expected a divisor of 100 (gbs)"),
        Dense("Microbatch", R"("gbs": 128, "mbs": 3)",
              "mbs: expected a divisor of 2 (gbs / dp), found 3"),
        Dense("Context", R"("cp": 2, "seq": 1001)",
              "cp: expected a divisor of 1001 (seq)"),
        Dense("ContextHalves", R"("cp": 2, "seq": 1002)",
              "cp: expected 2 cp to divide seq"),
        Dense("SequenceParallel", R"("tp": 8, "seq": 1001)",
              "tp with sequence parallelism"),
        Dense("Chunks", R"("vp": 2)", "vp: expected 1 without pipeline"),
        Dense("ChunksOfLayers", R"("pp": 4, "vp_layers": 3)",
              "vp_layers: expected a divisor of the 8 layers of a stage"),
        Dense("ChunksOfBatch", R"("pp": 4, "vp": 2, "gbs": 32)",
              "vp: expected 1 unless pp divides the microbatches of a rank"),
        Dense("Stages", R"("pp": 8, "vp": 8, "tp": 8)",
              "pp x vp: expected at most 3"),
        Dense("Schedule", R"("pp": 2, "pp_schedule": "gpipe")",
              "pp_schedule: expected one of 1F1B"),
        Dense("ScheduleOfOneStage", R"("pp_schedule": "zero_bubble")",
              "pp_schedule: expected 1F1B without pipeline parallelism"),
        WrongSetting{"DualPipeOdd", R"({"gpu": "H100", "gpus": 66, "pp": 3,
              "pp_schedule": "DualPipe"})",
                     "an even pp and vp 1 with DualPipe, found pp 3 and vp 1"},
        Dense("DualPipeChunks",
              R"("pp": 2, "vp": 2, "gbs": 256, "pp_schedule": "DualPipe")",
              "an even pp and vp 1 with DualPipe, found pp 2 and vp 2"),
        Dense("DualPipeBatch",
              R"("pp": 4, "gbs": 64, "pp_schedule": "DualPipe")",
              "at least 2 pp microbatches with DualPipe, found 4 of pp 4"),
        Dense("ZeroBubbleVChunks",
              R"("pp": 2, "vp": 4, "pp_schedule": "ZBVZeroBubble")",
              "vp: expected 2 with ZBVZeroBubble, VHalf or VMin, found 4"),
        Dense("FirstLayers", R"("pp": 4, "first_layers": 7)",
              "leave 3 other stages equal parts of 32 layers, found 7 and 0"),
        Dense("LastLayers", R"("pp": 2, "decoder-first-pipeline-num-layers": 4,
              "decoder-last-pipeline-num-layers": 4)",
              "leave 0 other stages equal parts of 32 layers, found 4 and 4"),
        Dense("LayersOfNoNumber", R"("pp": 4, "first_layers": -2)",
              "first_layers: expected a whole number from 0"),
        Dense("LayersOfChunks",
              R"("pp": 2, "vp": 2, "gbs": 256, "first_layers": 15)",
              "first_layers, last_layers: expected numbers that vp divides"),
        Dense("LayersCountedTwice", R"("pp": 4, "first_layers": 5,
              "account_for_embedding_in_pipeline_split": true)",
              "cannot be combined with embedding or logits that count"),
        Dense("CountedLogits", R"("pp": 4,
              "account_for_loss_in_pipeline_split": true)",
              "pp x vp: expected a divisor of 33 (layers, with embedding"),
        Dense("ScheduleOfChunks", R"("pp": 2, "vp": 2, "pp_schedule": "1F1B")",
              "expected Interleaved1F1B, as vp is above 1"),
        Dense("ScheduleWithoutChunks",
              R"("pp": 2, "pp_schedule": "Interleaved1F1B")",
              "expected 1F1B, as vp is 1"),
        Dense("Experts", R"("ep": 2)", "ep: expected 1 for a model without"),
        Dense("ExpertTensor", R"("etp": 2)", "etp: expected 1"),
        Dense("ZeroFour", R"("zero": 4)", "zero: expected 0 to 3, found 4"),
        Dense("ZeroTwo", R"("zero": 2, "pp": 2)", "zero: expected 0, 1 or 3"),
        Dense("ZeroAlone", R"("zero": 3, "tp": 8, "pp": 8)",
              "zero: expected at most 1 with a single data-parallel rank"),
        Dense("HybridShards", R"("data_parallel_replicate_degree": 8,
              "data_parallel_shard_degree": 4)",
              "expected -1, 1 or 8, of 64 data-parallel ranks in 8 groups"),
        Dense("HybridCopies", R"("data_parallel_replicate_degree": 5)",
              "expected a divisor of 64 (data-parallel ranks)"),
        Dense("CopiesOfMany", R"("num-distributed-optimizer-instances": 128)",
              "expected a divisor of 64 (data-parallel ranks)"),
        Dense("CopiesOfNothing",
              R"("num-distributed-optimizer-instances": 2, "zero": 0)",
              "expected 1 with zero 0, found 2"),
        Dense("Shards", R"("data_parallel_shard_degree": 8)",
              "expected -1, 1 or 64, of 64 data-parallel ranks in 1 groups"),
        Dense("Sharding", R"("data_parallel_sharding_strategy": "all")",
              "expected one of no_shard, optim"),
        Dense("Precision", R"("precision": "fp6")",
              "precision: expected one of bf16, fp16"),
        Dense("PrecisionOfGpu", R"("precision": "nvfp4")",
              "H100-SXM5 has no products in this precision; use bf16"),
        Dense("Recipe", R"("fp8-recipe": "magic")", "expected one of delayed"),
        Dense("Gradients", R"("grad_dtype": "int8")",
              "grad_dtype: expected one of fp32"),
        Dense("States", R"("exp-avg-dtype": "int4")",
              "exp-avg-dtype: expected one of fp32"),
        Dense("StatesTwice", R"("exp-avg-dtype": "bf16", "optimizer_bytes": 8)",
              "optimizer_bytes: expected no value beside types of its states"),
        Dense("Attention", R"("attention": "linear")",
              "attention: expected one of auto, flash"),
        Dense("AttentionOfContext", R"("attention": "unfused", "cp": 2)",
              "attention: expected flash or fused with cp above 1"),
        Dense("Recompute", R"("recompute": "some")",
              "recompute: expected none, full, full:N"),
        Dense("RecomputeNoLayers", R"("recompute": "full:0")",
              "recompute: expected none, full, full:N"),
        Dense("RecomputeEachNoLayer", R"("recompute": "every:0")",
              "recompute: expected none, full, full:N"),
        Dense("RecomputeLayers", R"("recompute": "full:9", "pp": 4)",
              "recompute: expected at most 8 layers of a stage, found 9"),
        Dense("RecomputePart", R"("recompute": "selective:soup")",
              "recompute: expected core_attn"),
        Dense("RecomputeNothing", R"("recompute": "selective:")",
              "recompute: expected core_attn"),
        Dense("RecomputeExperts", R"("recompute": "selective:moe_act")",
              "which has no experts"),
        Dense("RecomputeLatent", R"("recompute": "selective:mla_up_proj")",
              "which has no latent attention"),
        Dense("Uniform", R"("recompute-granularity": "full",
              "recompute-num-layers": 4)",
              "expected 1 with the method uniform"),
        Dense("Method", R"("recompute-granularity": "full",
              "recompute-method": "random")",
              "expected one of uniform, block"),
        Dense("MethodAlone", R"("recompute-method": "block")",
              "expected no value without recompute_granularity or a mode"),
        Dense("Granularity", R"("recompute-granularity": "fine")",
              "expected one of full, selective"),
        Dense("Option", R"("activation_checkpoint": {"mode": "selective",
              "selective_ac_option": "two"})",
              "expected op, or N for each N-th layer"),
        Dense("Layout", R"("pp": 2, "pipeline_model_parallel_layout": "Et|L")",
              "layout: expected a layout such as Et*3|(tt|)*14m|L of an "
              "embedding, 32 layers (t), 0 of prediction (m) and logits (L), "
              "found \"Et|L\""),
        Dense("LayoutOfManyStages",
              R"("pp": 4, "pipeline_model_parallel_layout": "Et*20|t*12L")",
              "pipeline_model_parallel_layout: expected pp x vp parts, 4, "
              "found 2"),
        Dense("LayoutBesideOthers",
              R"("pp": 2, "first_layers": 20,
                 "pipeline_model_parallel_layout": "Et*20|t*12L")",
              "cannot be combined with another setting of the layers"),
        Dense("LayoutWithoutEnd", R"("pp": 2, "layout": "E(t*3|")",
              "layout: expected a layout such as"),
        Dense("LayoutOfTooMany", R"("pp": 2, "layout": "E((t*999)*999)*999")",
              "layout: expected a layout such as"),
        Dense("OffloadBesideAPlan",
              R"("offload_layers": 4, "recompute": "plan")",
              "offload_layers: expected 0 with recompute plan"),
        Dense("Exchange", R"("cp": 2, "cp_comm_type": "tree")",
              "cp_comm_type: expected one of p2p, ring"),
        Dense("ExchangeOfHeads", R"("cp": 16, "cp_comm_type": "a2a")",
              "cp_comm_type: expected p2p or all_gather unless tp x cp"),
        Dense("Offload", R"("offload_layers": 40)",
              "offload_layers: expected at most 32"),
        Dense("Graphs", R"("cuda_graphs": "some")",
              "cuda_graphs: expected one of none"),
        Dense("Dropout", R"("attention-dropout": 2)",
              R"(expected a number from 0 to 1, found "2")"),
        Dense("Software", R"("software": "Excel")",
              "software: expected a name that begins with one of Megatron-LM"),
        Dense("SoftwareByAnotherName", R"("software": "torchtitian")",
              R"((the nearest: torchtitan), found "torchtitian")"),
        Dense("Domain", R"("nvlink_domain": 0)",
              "nvlink_domain: expected a whole number"),
        Dense("Network", R"("network_gbs": -5)",
              "network_gbs: expected a number from 0.01"),
        Dense("OverlapOfNothing", R"("overlap_tp": true)",
              "overlap_tp: expected false with tp 1"),
        Dense("EagerTensor", R"("implementation": "eager", "tp": 2)",
              "implementation: expected fused with tp, pp, cp or ep above 1"),
        Dense("EagerPrecision",
              R"("implementation": "eager", "precision": "fp8_current")",
              "implementation: expected fused with 8 or 4 bits"),
        Dense("EagerParts",
              R"("implementation": "eager", "recompute": "selective:mlp")",
              "recompute: expected none, full, full:N or every:N"),
        Dense("Implementation", R"("implementation": "lazy")",
              "implementation: expected one of fused, eager"),
        Dense("Dispatcher", R"("dispatcher": "deepep")",
              "dispatcher: expected alltoall for a model without experts"),
        Moe("ExpertDegree", R"("ep": 3)",
            "pp x ep: expected a divisor of 64 (gpus)"),
        Moe("ExpertsOfRanks", R"("ep": 64, "pp": 2)",
            "pp x ep: expected a divisor of 64 (gpus), found 128"),
        WrongSetting{"ExpertTensorOfWidth",
                     R"({"gpu": "H100", "gpus": 60, "etp": 3, "gbs": 120})",
                     "etp: expected a divisor of 2048 (expert_ffn), found 3",
                     true},
        Moe("ExpertTensorOfRanks", R"("ep": 16, "etp": 8)",
            "pp x ep x etp: expected a divisor of 64 (gpus), found 128"),
        Moe("DispatcherName", R"("dispatcher": "mail")",
            "dispatcher: expected one of alltoall"),
        Moe("ExpertsNeedSequenceParallel", R"("tp": 2, "sp": false)",
            "sp: expected true for experts with tp above 1"),
        Moe("OverlapOfOneExpertRank", R"("overlap_ep": true)",
            "overlap_ep: expected false with ep 1")),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace acplan::costmodel
