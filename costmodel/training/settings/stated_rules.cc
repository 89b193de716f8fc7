#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "costmodel/training/settings/strategy_settings.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

void Require(bool holds, const std::string& message) {
  if (!holds) throw InputError("strategy: " + message);
}

void CheckPipeline(const ModelShape& shape, const TrainingStrategy& s) {
  Require(s.chunks == 1 || IsVShaped(s.schedule) ||
              s.Microbatches() % s.pipeline == 0,
          fmt::format("vp: expected 1 unless pp divides the microbatches of a "
                      "rank, found vp {}, pp {} and {} microbatches",
                      s.chunks, s.pipeline, s.Microbatches()));
  const int64_t layers = (shape.layers + s.pipeline - 1) / s.pipeline;
  Require(s.full_layers <= layers,
          fmt::format("recompute: expected at most {} layers of a stage, found "
                      "{}",
                      layers, s.full_layers));
  Require(s.offloaded_layers <= layers,
          fmt::format("offload_layers: expected at most {} (layers of a "
                      "stage), found {}",
                      layers, s.offloaded_layers));
  Require(
      s.offloaded_layers == 0 || s.recomputation != Recomputation::kPlan,
      fmt::format("offload_layers: expected 0 with recompute plan, found {}",
                  s.offloaded_layers));
}

void CheckAttention(const ModelShape& shape, const TrainingStrategy& s) {
  Require(s.context == 1 || s.sequence % (2 * s.context) == 0,
          fmt::format("cp: expected 2 cp to divide seq, as each rank takes a "
                      "part of the front and of the back, found cp {} and seq "
                      "{}",
                      s.context, s.sequence));
  Require(s.context == 1 || s.context_exchange != ContextExchange::kAllToAll ||
              DividesHeads(shape, s),
          fmt::format("cp_comm_type: expected p2p or all_gather unless tp x cp "
                      "divides {} heads and {} key and value heads, found a2a "
                      "with tp {} and cp {}",
                      shape.heads, shape.kv_heads, s.tensor, s.context));
  Require(s.context == 1 || s.attention != AttentionKernel::kUnfused,
          "attention: expected flash or fused with cp above 1, found unfused");
  Require(shape.IsLatent() || shape.kv_heads % s.tensor == 0 ||
              s.tensor % shape.kv_heads == 0,
          fmt::format("tp: expected a divisor or a multiple of {} (key and "
                      "value heads), found {}",
                      shape.kv_heads, s.tensor));
}

void CheckImplementation(const ModelShape& shape, const TrainingStrategy& s) {
  if (s.implementation == Implementation::kFused) return;
  Require(shape.HasUniformLayers() && shape.attention_gate == 0,
          "implementation: expected fused for a model with linear mixers, "
          "indexers or gates of attention, found eager");
  Require(s.tensor * s.pipeline * s.context * s.expert == 1,
          "implementation: expected fused with tp, pp, cp or ep above 1, found "
          "eager");
  Require(s.recomputation == Recomputation::kNone ||
              s.recomputation == Recomputation::kFull,
          "recompute: expected none, full, full:N or every:N with the "
          "implementation "
          "eager");
  Require(s.offloaded_layers == 0,
          "offload_layers: expected 0 with the implementation eager");
}

void CheckAdapters(const TrainingStrategy& s) {
  Require(s.lora_rank == 0 || s.implementation == Implementation::kFused,
          "lora_rank: expected 0 with the implementation eager");
  Require(s.lora_rank > 0 || (!s.lora_attention_only && !s.has_four_bit_base),
          "lora_targets, base_weights: expected no value without lora_rank");
  Require(!s.has_four_bit_base || (s.tensor == 1 && !s.IsLowPrecision()),
          "base_weights: expected bf16 with tp above 1, or with products of 8 "
          "or 4 bits, as bitsandbytes has neither");
}

// Requires what is modelled of a model with linear mixers or indexers.
void CheckMixers(const ModelShape& shape, const TrainingStrategy& s) {
  if (shape.HasUniformLayers()) return;
  const std::string_view part =
      shape.IsHybrid() ? "linear mixers" : "indexers of sparse attention";
  Require(
      s.recomputation != Recomputation::kPlan &&
          s.recomputation != Recomputation::kSelective,
      fmt::format(
          "recompute: expected none, full, full:N, every:N or "
          "selective:op, as plans and parts of layers with {} are not modelled",
          part));
  Require(s.context == 1,
          fmt::format("cp: expected 1, as context parallelism of {} is not "
                      "modelled; found {}",
                      part, s.context));
  Require(s.attention != AttentionKernel::kUnfused || shape.IsHybrid(),
          fmt::format("attention: expected auto, flash or fused with {}, found "
                      "unfused",
                      part));
}

// Requires that the images of a sequence are a part of it, and that the model reads images.
void CheckTowers(const ModelShape& shape, const TrainingStrategy& s) {
  const bool is_stated =
      s.images > 0 || s.image_patches > 0 || s.freezes_towers;
  const std::string_view unmodelled =
      shape.HasEncoder() ? UnmodelledWithEncoder(s) : "";
  Require(unmodelled.empty(),
          fmt::format("{} for an encoder with a decoder, as acplan models "
                      "nothing else of it",
                      unmodelled));
  Require(shape.HasEncoder() || s.source == 0,
          "source_seq: expected no value for a model without an encoder");
  const bool reads_images = !shape.towers.empty() && !shape.HasEncoder();
  Require(reads_images || !is_stated,
          "images, image_patches, freeze_towers: expected no value for a model "
          "without a vision tower");
  Require(s.images == 0 || s.implementation == Implementation::kFused,
          "images: expected 0 with the implementation eager, whose towers are "
          "not modelled");
  for (const Tower& tower : shape.towers) {
    if (tower.is_encoder) {
      const int64_t positions = tower.stack->learned_positions;
      Require(positions == 0 || s.source <= positions,
              fmt::format("source_seq: expected at most {} (positions of the "
                          "encoder), found {}",
                          positions, s.source));
      continue;
    }
    const int64_t tokens = ImageTokens(tower, PatchesOf(tower, s));
    Require(s.images <= s.sequence / tokens,
            fmt::format("images: expected at most {} of {} tokens each in a "
                        "sequence of {}, found {}",
                        s.sequence / tokens, tokens, s.sequence, s.images));
  }
}

void CheckExperts(const ModelShape& shape, const TrainingStrategy& s) {
  Require(!shape.IsMoe() || s.tensor == 1 || s.sequence_parallel,
          "sp: expected true for experts with tp above 1, found false");
  Require(!s.overlaps_expert || s.expert > 1,
          fmt::format("overlap_ep: expected false with ep {}, found true",
                      s.expert));
}

void CheckParts(const ModelShape& shape, const TrainingStrategy& s) {
  const auto has = [&](LayerPart part) { return s.parts.contains(part); };
  Require(shape.IsMoe() || !has(LayerPart::kMoeActivation),
          "recompute: expected parts of the model, which has no experts; found "
          "moe or moe_act");
  Require(shape.IsLatent() || !has(LayerPart::kMlaUp),
          "recompute: expected parts of the model, which has no latent "
          "attention; found mla_up_proj");
}

}  // namespace

void CheckStatedJob(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  const int64_t positions = job.shape.learned_positions;
  Require(positions == 0 || s.sequence <= positions,
          fmt::format("seq: expected at most {} (positions of the model), "
                      "found {}",
                      positions, s.sequence));
  Require(job.shape.IsMoe() || !s.dedupes_tokens,
          "dispatcher: expected alltoall for a model without experts");
  CheckParts(job.shape, s);
  CheckTowers(job.shape, s);
  Require(s.implementation == Implementation::kFused ||
              s.precision == ProductPrecision::kBf16,
          "implementation: expected fused with 8 or 4 bits, found eager");
  Require(
      job.cluster.gpu.Rate(s.precision) > 0,
      fmt::format("precision: {} has no products in this precision; use bf16",
                  job.cluster.gpu.name));
}

void CheckStatedStrategy(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  CheckStatedJob(job);
  CheckPipeline(job.shape, s);
  CheckAttention(job.shape, s);
  CheckExperts(job.shape, s);
  CheckMixers(job.shape, s);
  CheckAdapters(s);
  CheckImplementation(job.shape, s);
  Require(!s.overlaps_tensor || s.tensor > 1,
          "overlap_tp: expected false with tp 1, found true");
  Require(s.zero < 2 || s.Data() > 1,
          fmt::format("zero: expected at most 1 with a single data-parallel "
                      "rank, found {}",
                      s.zero));
  Require(s.zero < 2 || s.pipeline == 1 || s.zero == 3,
          "zero: expected 0, 1 or 3 with pp above 1, found 2: gradients that "
          "microbatches add to cannot be scattered after each");
}

}  // namespace acplan::costmodel
