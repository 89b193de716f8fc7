#include "costmodel/training/settings/strategy_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "costmodel/training/settings/setting_values.h"
#include "costmodel/training/settings/strategy_space.h"
#include "costmodel/training/strategy/layout_text.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

// Defaults that describe a run of today.
constexpr std::string_view kSoftware = "Megatron-Bridge";
constexpr int64_t kDefaultSequence = 4096;
constexpr int64_t kMicrobatchesAStage = 4;
// The most sequences of a microbatch.
constexpr int64_t kMostSequences = 1 << 20;

bool HasTorchtitanKeys(const SettingValues& values) {
  return values.Has("shard_degree") || values.Has("replicate_degree") ||
         values.Has("ac_mode") || values.Has("local_batch");
}

const SoftwareStack& SoftwareOf(const SettingValues& values,
                                const TrainingSystems& systems) {
  if (!values.Has("software")) {
    return FindStack(systems,
                     HasTorchtitanKeys(values) ? "torchtitan" : kSoftware);
  }
  const std::string name = values.Text("software");
  const SoftwareStack* stack = MatchingStack(systems, name);
  if (stack == nullptr) {
    values.Fail("software", ExpectedSoftware(systems, name));
  }
  return *stack;
}

Cluster ClusterOf(const SettingValues& values, const TrainingSystems& systems,
                  int64_t gpus) {
  if (!values.Has("gpu")) values.Fail("gpu", "a GPU, such as H100");
  Cluster cluster{.gpu = FindAccelerator(systems, values.Text("gpu")),
                  .stack = SoftwareOf(values, systems),
                  .kernels = systems.kernels};
  cluster.domain = values.Whole("nvlink_domain", cluster.gpu.nvlink_domain);
  // In racks of 72, jobs of more than a rack use 64 GPUs, since degrees are powers of two.
  if (cluster.domain == 72 && gpus > 64) cluster.domain = 64;
  cluster.network_rate =
      1e9 *
      values.Number("network_gbs", cluster.gpu.network_rate / 1e9, .01, 1e5);
  return cluster;
}

int64_t ChunksOf(const SettingValues& values, const ModelShape& shape,
                 int64_t pipeline) {
  if (values.Has("vp") || !values.Has("vp_layers")) {
    return values.Whole("vp", 1);
  }
  const int64_t layers = values.Whole("vp_layers", 1);
  if (shape.layers % pipeline != 0 || shape.layers / pipeline % layers != 0) {
    values.Fail("vp_layers",
                fmt::format("a divisor of the {} layers of a stage",
                            shape.layers / std::max<int64_t>(1, pipeline)));
  }
  return shape.layers / pipeline / layers;
}

// Returns the schedule by the names of Megatron-LM, torchtitan and the papers. A search may
// also name all of them.
std::optional<PipelineSchedule> StatedSchedule(const SettingValues& values,
                                               bool may_be_any) {
  using enum PipelineSchedule;
  constexpr PipelineSchedule kAll[] = {kOneForwardOneBackward,
                                       kInterleaved,
                                       kInterleaved,
                                       kZeroBubbleV,
                                       kZeroBubbleV,
                                       kDualPipe,
                                       kZeroBubble,
                                       kZeroBubble,
                                       kZeroBubble,
                                       kHalfV,
                                       kHalfV,
                                       kMinV,
                                       kMinV};
  std::vector<std::string_view> names = {"1F1B",
                                         "Interleaved1F1B",
                                         "interleaved_1f1b",
                                         "ZBVZeroBubble",
                                         "ZBV",
                                         "DualPipe",
                                         "InterleavedZeroBubble",
                                         "zero_bubble",
                                         "ZBH1",
                                         "VHalf",
                                         "V-Half",
                                         "VMin",
                                         "V-Min"};
  if (may_be_any) names.emplace_back("any");
  const int choice = values.Choice("pp_schedule", names);
  if (choice < 0 || choice >= static_cast<int>(std::size(kAll))) return {};
  return kAll[choice];
}

PipelineSchedule ScheduleOf(const SettingValues& values, int64_t chunks) {
  using enum PipelineSchedule;
  const PipelineSchedule usual =
      chunks > 1 ? kInterleaved : kOneForwardOneBackward;
  const PipelineSchedule schedule =
      StatedSchedule(values, false).value_or(usual);
  if (schedule == kOneForwardOneBackward && chunks > 1) {
    values.Fail("pp_schedule", "Interleaved1F1B, as vp is above 1");
  }
  if (schedule == kInterleaved && chunks == 1) {
    values.Fail("pp_schedule", "1F1B, as vp is 1");
  }
  return schedule;
}

// Applies the layout. As in Megatron-LM, it also sets the chunks of a stage.
TrainingStrategy WithLayoutText(TrainingStrategy s, const SettingValues& values,
                                const ModelShape& shape) {
  if (!values.Has("layout")) return s;
  const auto counts = ParseLayout(values.Text("layout"), shape);
  if (!counts) {
    values.Fail(
        "layout",
        fmt::format("a layout such as Et*3|(tt|)*14m|L of an embedding, "
                    "{} layers (t), {} of prediction (m) and logits (L)",
                    shape.layers, shape.mtp_layers));
  }
  s.layout = *counts;
  const auto parts = static_cast<int64_t>(counts->size());
  if (!values.Has("vp") && !values.Has("vp_layers") &&
      parts % s.pipeline == 0) {
    s.chunks = parts / s.pipeline;
  }
  return s;
}

// Returns the exchange by the names of Megatron-LM and of torchtitan, whose "alltoall" is a
// ring.
ContextExchange ContextExchangeOf(const SettingValues& values) {
  using enum ContextExchange;
  constexpr ContextExchange kAll[] = {kRing,     kRing,      kAllGather,
                                      kAllToAll, kAllGather, kRing};
  const int choice = values.Choice(
      "cp_comm_type",
      {"p2p", "ring", "all_gather", "a2a", "allgather", "alltoall"});
  return kAll[std::max(0, choice)];
}

// Returns the number of groups in HSDP: parameters are sharded inside of each group.
int64_t CopiesOf(const TrainingStrategy& s, const SettingValues& values) {
  const int64_t ranks = s.Data() * s.context;
  const int64_t shards = values.Whole("shard_degree", -1, -1);
  const std::string_view key =
      values.Has("optimizer_copies") ? "optimizer_copies" : "replicate_degree";
  const int64_t copies = values.Whole(key, 1);
  if (shards == 1) return 1;  // only copies, nothing is sharded
  if (copies > ranks || ranks % copies != 0) {
    values.Fail(key,
                fmt::format("a divisor of {} (data-parallel ranks)", ranks));
  }
  const bool fits =
      shards == -1 || shards * copies == s.Data() || shards * copies == ranks;
  if (shards == 0 || !fits) {
    values.Fail("shard_degree",
                fmt::format("-1, 1 or {}, of {} data-parallel ranks in {} "
                            "groups",
                            s.Data() / copies, s.Data(), copies));
  }
  return copies;
}

TrainingStrategy WithSharding(TrainingStrategy s, const SettingValues& values) {
  const int64_t shards = values.Whole("shard_degree", 1, -1);
  s.optimizer_copies = CopiesOf(s, values);
  if (values.Has("zero")) {
    s.zero = values.Whole("zero", 1, 0);
  } else if (values.Has("sharding")) {
    s.zero = values.Choice(
        "sharding", {"no_shard", "optim", "optim_grads", "optim_grads_params"});
  } else if (values.Has("shard_degree")) {
    s.zero = shards == 1 ? 0 : 3;
  } else {
    s.zero = values.Flag("dist_opt", true) ? 1 : 0;
  }
  if (s.zero >= 2) s.fsdp = s.Data() * s.context / s.optimizer_copies;
  return s;
}

int64_t MicrobatchOf(const SettingValues& values, int64_t pipeline) {
  if (values.Has("mbs") || !values.Has("local_batch")) {
    return values.Whole("mbs", 1);
  }
  // torchtitan cuts the local batch into microbatches of 1 for a pipeline.
  return pipeline > 1 ? 1 : values.Whole("local_batch", 1);
}

TrainingStrategy DegreesOf(const SettingValues& values,
                           const ModelShape& shape) {
  TrainingStrategy s;
  if (!values.Has("gpus")) values.Fail("gpus", "the number of GPUs");
  s.gpus = values.Whole("gpus", 1);
  s.sequence = values.Whole("seq", kDefaultSequence);
  s.tensor = values.Whole("tp", 1);
  s.sequence_parallel = values.Flag("sp", true) && s.tensor > 1;
  s.pipeline = values.Whole("pp", 1);
  s.chunks = ChunksOf(values, shape, s.pipeline);
  s = WithLayoutText(std::move(s), values, shape);
  s.schedule = ScheduleOf(values, s.chunks);
  if (IsVShaped(s.schedule) && !values.Has("vp")) s.chunks = 2;
  s.first_layers = values.Whole("first_layers", 0, 0);
  s.last_layers = values.Whole("last_layers", 0, 0);
  s.counts_embedding = values.Flag("counts_embedding", false);
  s.counts_logits = values.Flag("counts_logits", false);
  s.context = values.Whole("cp", 1);
  s.context_exchange = ContextExchangeOf(values);
  s.expert = values.Whole("ep", 1);
  s.expert_tensor = values.Whole("etp", 1);
  s.microbatch = MicrobatchOf(values, s.pipeline);
  if (s.microbatch > kMostSequences) {
    values.Fail(values.Has("mbs") ? "mbs" : "local_batch",
                fmt::format("a whole number from 1 to {}", kMostSequences));
  }
  if (s.Data() < 1 || s.gpus % s.tensor != 0 ||
      s.gpus / s.tensor % s.pipeline != 0 ||
      s.gpus / s.tensor / s.pipeline % s.context != 0) {
    throw InputError(fmt::format(
        "tp x pp x cp: expected a divisor of {} (gpus), found {} x {} x {}",
        s.gpus, s.tensor, s.pipeline, s.context));
  }
  if (values.Whole("dp", s.Data()) != s.Data()) {
    values.Fail("dp", fmt::format("{}, gpus / (tp x pp x cp)", s.Data()));
  }
  s.global_batch = values.Whole(
      "gbs",
      s.Data() * (values.Has("local_batch")
                      ? values.Whole("local_batch", 1)
                      : s.microbatch * kMicrobatchesAStage * s.pipeline));
  return WithSharding(s, values);
}

ProductPrecision PrecisionOf(const SettingValues& values) {
  using enum ProductPrecision;
  if (values.Has("precision")) {
    constexpr ProductPrecision kAll[] = {
        kBf16,       kBf16,         kFp8Delayed, kFp8Current,
        kFp8Rowwise, kFp8Blockwise, kMxfp8,      kNvfp4};
    return kAll[values.Choice(
        "precision", {"bf16", "fp16", "fp8_delayed", "fp8_current",
                      "fp8_rowwise", "fp8_blockwise", "mxfp8", "nvfp4"})];
  }
  if (values.Has("fp4")) return kNvfp4;
  if (!values.Has("fp8") && !values.Has("fp8_recipe")) return kBf16;
  constexpr ProductPrecision kRecipes[] = {kFp8Delayed, kFp8Current,
                                           kFp8Rowwise, kFp8Blockwise, kMxfp8};
  const int recipe = values.Choice(
      "fp8_recipe", {"delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"});
  return kRecipes[std::max(0, recipe)];
}

// Sets the bytes of an element of gradients, for those that are kept and those that are
// sent.
TrainingStrategy WithGradients(TrainingStrategy s,
                               const SettingValues& values) {
  const std::vector<std::string_view> types = {"fp32",     "bf16", "float32",
                                               "bfloat16", "fp16", "float16"};
  const auto bytes = [&](std::string_view key, double fallback) -> double {
    if (!values.Has(key)) return fallback;
    return values.Choice(key, types) % 2 == 0 && values.Text(key) != "fp16" ? 4
                                                                            : 2;
  };
  const double kept_bytes =
      values.Flag("grads_fp32", true) && !values.Flag("grads_bf16", false) ? 4
                                                                           : 2;
  s.gradient_bytes = bytes("grad_dtype", kept_bytes);
  s.gradient_reduce_bytes = bytes("grad_reduce_dtype", s.gradient_bytes);
  return s;
}

// Returns the bytes of a parameter's master weight and two moments, for the types that
// Megatron-LM's precision-aware optimizer has.
double OptimizerBytesOf(const SettingValues& values) {
  constexpr std::string_view kStates[] = {"main_params_dtype", "exp_avg_dtype",
                                          "exp_avg_sq_dtype"};
  constexpr double kBytes[] = {4, 4, 2, 2, 2, 2, 1};
  double sum = 0;
  bool is_told = false;
  for (const std::string_view state : kStates) {
    const int type = values.Choice(
        state,
        {"fp32", "float32", "bf16", "bfloat16", "fp16", "float16", "fp8"});
    is_told = is_told || type >= 0;
    sum += type >= 0 ? kBytes[type] : 4;
  }
  if (is_told && values.Has("optimizer_bytes")) {
    values.Fail("optimizer_bytes", "no value beside types of its states");
  }
  return values.Number("optimizer_bytes", sum, 0, 100);
}

AttentionKernel AttentionOf(const SettingValues& values,
                            const Cluster& cluster) {
  using enum AttentionKernel;
  // cuDNN's attention and FlashAttention 3 need Hopper or later; torchtitan uses SDPA.
  const bool is_new = cluster.gpu.fp8_rate > 0 &&
                      cluster.gpu.name != "MI300X" &&
                      !cluster.stack.name.starts_with("torchtitan");
  const AttentionKernel automatic = is_new ? kFlashNew : kFlash;
  if (!values.Has("attention")) {
    return values.Flag("flash_attn", true) ? automatic : kUnfused;
  }
  switch (values.Choice("attention",
                        {"auto", "flash", "fused", "unfused", "local"})) {
    case 0:
      return automatic;
    case 1:
      return kFlash;
    case 2:
      return kFlashNew;
    default:
      return kUnfused;
  }
}

// Sets the dropouts. As in Megatron-LM, the embedding has dropout if layers have it.
TrainingStrategy WithDropouts(TrainingStrategy s, const SettingValues& values,
                              const ModelShape& shape) {
  const auto number = [&](std::string_view key, double fallback) {
    if (!values.Has(key)) key = "dropout";
    return values.Number(key, fallback, 0, 1);
  };
  const double hidden = number("hidden_dropout", shape.hidden_dropout);
  s.drops_hidden = hidden > 0;
  s.drops_scores = number("attention_dropout", shape.attention_dropout) > 0;
  s.drops_embedding =
      values.Number("embedding_dropout",
                    values.Has("hidden_dropout") || values.Has("dropout")
                        ? hidden
                        : shape.embedding_dropout,
                    0, 1) > 0;
  return s;
}

TrainingStrategy WithKernels(TrainingStrategy s, const SettingValues& values,
                             const Cluster& cluster) {
  s.precision = PrecisionOf(values);
  s.attention = AttentionOf(values, cluster);
  s.fuses_experts = values.Flag("grouped_gemm", cluster.stack.fuses_experts) &&
                    s.precision != ProductPrecision::kFp8Delayed &&
                    s.precision != ProductPrecision::kFp8Current;
  if (values.Choice("implementation", {"fused", "eager"}) == 1) {
    s.implementation = Implementation::kEager;
  }
  s.optimizer_bytes = OptimizerBytesOf(values);
  s.offloaded_layers = values.Whole("offload_layers", 0, 0);
  s.offloads_states = values.Flag("offload_states", false);
  s.lora_rank = values.Whole("lora_rank", 0, 0);
  s.lora_attention_only =
      values.Choice("lora_targets", {"all", "attention"}) == 1;
  s.has_four_bit_base = values.Choice("base_weights", {"bf16", "nf4"}) == 1;
  s.images = values.Whole("images", 0, 0);
  s.source = values.Whole("source_seq", 0, 0);
  s.image_patches = values.Whole("image_patches", 0);
  s.freezes_towers = values.Flag("freeze_towers", false);
  const int graphs =
      values.Choice("cuda_graphs",
                    {"none", "partial", "full", "local", "transformer_engine"});
  if (graphs == 1 || graphs > 2) s.graphs = CudaGraphs::kPartial;
  if (graphs == 2) s.graphs = CudaGraphs::kFull;
  s.overlaps_data = values.Flag("overlap_dp", true);
  s.overlaps_tensor = values.Flag("overlap_tp", false);
  // DualPipe runs the exchange of tokens beside another microbatch.
  s.overlaps_expert = values.Flag(
      "overlap_ep", s.schedule == PipelineSchedule::kDualPipe && s.expert > 1);
  const int dispatcher = values.Choice(
      "dispatcher", {"alltoall", "allgather", "flex", "deepep", "hybridep"});
  s.dedupes_tokens = dispatcher >= 2 || values.Flag("deepep", false) ||
                     values.Has("flex_backend");
  return s;
}

}  // namespace

TrainingJob StatedJob(const ModelShape& shape, const StrategySettings& settings,
                      const TrainingSystems& systems) {
  const SettingValues values(settings);
  TrainingJob job{.shape = shape, .strategy = DegreesOf(values, shape)};
  job.cluster = ClusterOf(values, systems, job.strategy.gpus);
  job.strategy = WithKernels(job.strategy, values, job.cluster);
  if (shape.HasEncoder() && job.strategy.source == 0) {
    const int64_t frames = shape.towers.front().patches;
    job.strategy.source = frames > 0 ? frames : job.strategy.sequence;
  }
  job.strategy = WithDropouts(job.strategy, values, shape);
  job.strategy = WithGradients(job.strategy, values);
  job.strategy = WithSettingsOfRecomputation(job.strategy, values);
  if (job.strategy.implementation == Implementation::kEager) {
    job.shape.mtp_layers = 0;  // transformers leaves them out
    if ((values.Has("hidden_dropout") || values.Has("dropout")) &&
        !job.strategy.drops_hidden) {
      job.shape.form.dropout_masks = 0;
    }
  }
  return job;
}

std::vector<PipelineSchedule> SearchedSchedules(
    const StrategySettings& settings, const SoftwareStack& stack) {
  const SettingValues values(settings);
  if (!values.Has("pp_schedule")) return SchedulesOf(stack);
  const auto stated = StatedSchedule(values, true);
  return stated ? std::vector{*stated} : EverySchedule();
}

TrainingJob JobOfSettings(const ModelShape& shape,
                          const StrategySettings& settings,
                          const TrainingSystems& systems) {
  TrainingJob job = StatedJob(shape, settings, systems);
  CheckStrategy(job.shape, job.strategy, "strategy");
  CheckStatedStrategy(job);
  return job;
}

}  // namespace acplan::costmodel
