#include "costmodel/training/strategy/training_strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

// Returns the product of numbers above 0; the largest number if 64 bits do not hold it.
int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (product > INT64_MAX / factor) return INT64_MAX;
    product *= factor;
  }
  return product;
}

class StrategyRules {
 public:
  explicit StrategyRules(std::string_view place) : place_(place) {}

  // Requires that `by` divides `what`.
  void Divides(std::string_view by_name, int64_t divisor,
               std::string_view what_name, int64_t what) const {
    if (what % divisor == 0) return;
    Fail(fmt::format("{}: expected a divisor of {} ({}), found {}", by_name,
                     what, what_name, divisor));
  }
  void Require(bool holds, const std::string& message) const {
    if (!holds) Fail(message);
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw InputError(fmt::format("{}: {}", place_, message));
  }

  std::string_view place_;
};

void CheckDegrees(const TrainingStrategy& s, const StrategyRules& rules) {
  rules.Require(s.sequence >= 1 && s.global_batch >= 1,
                "expected a sequence and a global batch of at least 1");
  rules.Divides("tp x pp x cp", Product({s.tensor, s.pipeline, s.context}),
                "gpus", s.gpus);
  rules.Divides(s.expert_tensor > 1 ? "pp x ep x etp" : "pp x ep",
                Product({s.pipeline, s.expert, s.expert_tensor}), "gpus",
                s.gpus);
  rules.Divides("dp", s.Data(), "gbs", s.global_batch);
  if (s.microbatch > 0) {
    rules.Divides("mbs", s.microbatch, "gbs / dp", s.global_batch / s.Data());
  }
  rules.Divides("cp", s.context, "seq", s.sequence);
  if (s.sequence_parallel) {
    rules.Divides("tp with sequence parallelism", s.tensor, "seq / cp",
                  s.sequence / s.context);
  }
  rules.Require(s.zero >= 0 && s.zero <= 3,
                fmt::format("zero: expected 0 to 3, found {}", s.zero));
  rules.Require(s.chunks == 1 || s.pipeline > 1,
                fmt::format("vp: expected 1 without pipeline parallelism, "
                            "found {}",
                            s.chunks));
  if (s.optimizer_copies == 1) return;
  rules.Require(s.zero >= 1,
                fmt::format("copies of sharded parameters: expected 1 with "
                            "zero 0, found {}",
                            s.optimizer_copies));
  rules.Divides("copies of sharded parameters", s.optimizer_copies, "dp x cp",
                s.Data() * s.context);
  rules.Divides("copies of sharded parameters", s.optimizer_copies,
                "ranks with the same experts", s.ExpertData());
}

void CheckSchedule(const TrainingStrategy& s, const StrategyRules& rules) {
  const bool is_two_way =
      IsVShaped(s.schedule) || s.schedule == PipelineSchedule::kDualPipe;
  rules.Require(s.pipeline > 1 || (!is_two_way &&
                                   s.schedule != PipelineSchedule::kZeroBubble),
                "pp_schedule: expected 1F1B without pipeline parallelism, "
                "found another one");
  if (IsVShaped(s.schedule)) {
    rules.Require(s.chunks == 2,
                  fmt::format("vp: expected 2 with ZBVZeroBubble, VHalf or "
                              "VMin, found {}",
                              s.chunks));
  }
  if (s.schedule == PipelineSchedule::kDualPipe) {
    rules.Require(s.pipeline % 2 == 0 && s.chunks == 1,
                  fmt::format("pp_schedule: expected an even pp and vp 1 with "
                              "DualPipe, found pp {} and vp {}",
                              s.pipeline, s.chunks));
    rules.Require(
        s.microbatch == 0 || s.Microbatches() >= 2 * s.pipeline,
        fmt::format("pp_schedule: expected at least 2 pp "
                    "microbatches with DualPipe, found {} of pp {}",
                    s.microbatch == 0 ? 0 : s.Microbatches(), s.pipeline));
  }
}

// Checks the rules of stages with stated numbers of layers.
void CheckStages(const ModelShape& shape, const TrainingStrategy& s,
                 const StrategyRules& rules) {
  const bool is_stated = s.first_layers > 0 || s.last_layers > 0;
  rules.Require(s.layout.empty() ||
                    (!is_stated && !s.counts_embedding && !s.counts_logits),
                "pipeline_model_parallel_layout: cannot be combined with "
                "another setting of the layers of stages");
  rules.Require(
      s.layout.empty() || s.layout.size() == static_cast<size_t>(Product(
                                                 {s.pipeline, s.chunks})),
      fmt::format("pipeline_model_parallel_layout: expected pp x vp parts, {}, "
                  "found {}",
                  Product({s.pipeline, s.chunks}), s.layout.size()));
  rules.Require(!is_stated || (!s.counts_embedding && !s.counts_logits),
                "first_layers, last_layers: cannot be combined with embedding "
                "or logits that count as layers");
  if (s.counts_embedding || s.counts_logits) {
    const int64_t blocks = shape.layers + shape.mtp_layers +
                           (s.counts_embedding ? 1 : 0) +
                           (s.counts_logits ? 1 : 0);
    rules.Divides("pp x vp", Product({s.pipeline, s.chunks}),
                  "layers, with embedding and logits as counted", blocks);
  }
  if (!is_stated) return;
  const int64_t others =
      s.pipeline - (s.first_layers > 0 ? 1 : 0) - (s.last_layers > 0 ? 1 : 0);
  const int64_t rest = shape.layers - s.first_layers - s.last_layers;
  rules.Require(
      others >= 0 && rest >= 0 && (others > 0 || rest == 0) &&
          (others == 0 || rest % (others * s.chunks) == 0) &&
          s.first_layers % s.chunks == 0 && s.last_layers % s.chunks == 0,
      fmt::format("first_layers, last_layers: expected numbers that vp divides "
                  "and that leave {} other stages equal parts of {} layers, "
                  "found {} and {}",
                  std::max<int64_t>(0, others), shape.layers, s.first_layers,
                  s.last_layers));
}

}  // namespace

std::optional<std::set<LayerPart>> LayerPartsNamed(std::string_view names) {
  using enum LayerPart;
  const std::map<std::string_view, std::set<LayerPart>> kNames = {
      {"core_attn", {kCoreAttention}},
      {"layernorm", {kNorm}},
      {"mla_up_proj", {kMlaUp}},
      {"moe", {kMoe, kMoeActivation}},
      {"moe_act", {kMoeActivation}},
      {"mlp", {kFeedforward, kActivation}},
      {"shared_experts", {kFeedforward, kActivation}},
      {"minimal_flash", {kNorm, kActivation, kResidual}}};
  std::set<LayerPart> parts;
  while (!names.empty()) {
    const size_t end = std::min(names.find_first_of("+, "), names.size());
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    if (name.empty()) continue;
    const auto entry = kNames.find(name);
    if (entry == kNames.end()) return std::nullopt;
    parts.insert(entry->second.begin(), entry->second.end());
  }
  return parts;
}

bool IsVShaped(PipelineSchedule schedule) {
  using enum PipelineSchedule;
  return schedule == kZeroBubbleV || schedule == kHalfV || schedule == kMinV;
}

int64_t RecomputedLayers(const TrainingStrategy& s, int64_t layers) {
  if (s.every_layers > 0) return layers / s.every_layers;
  return s.full_layers > 0 ? std::min(s.full_layers, layers) : layers;
}

bool DividesHeads(const ModelShape& shape, const TrainingStrategy& s) {
  const int64_t ranks = s.tensor * s.context;
  return shape.heads % ranks == 0 &&
         (shape.IsLatent() || shape.kv_heads % ranks == 0);
}

int64_t PatchesOf(const Tower& tower, const TrainingStrategy& strategy) {
  if (tower.is_encoder) return strategy.source;
  return strategy.image_patches > 0 ? strategy.image_patches : tower.patches;
}

std::string_view UnmodelledWithEncoder(const TrainingStrategy& s) {
  if (s.pipeline > 1) return "pp: expected 1";
  if (s.context > 1) return "cp: expected 1";
  if (s.sequence_parallel && s.source % s.tensor > 0) {
    return "source_seq: expected a length that tp divides, or sp false,";
  }
  if (s.lora_rank > 0) return "lora_rank: expected 0";
  if (s.offloaded_layers > 0) return "offload_layers: expected 0";
  if (s.implementation != Implementation::kFused) {
    return "implementation: expected fused";
  }
  const bool is_whole = s.recomputation == Recomputation::kNone ||
                        s.recomputation == Recomputation::kFull;
  return is_whole ? "" : "recompute: expected none, full, full:N or every:N";
}

void CheckStrategy(const ModelShape& shape, const TrainingStrategy& s,
                   std::string_view place) {
  const StrategyRules rules(place);
  CheckDegrees(s, rules);
  CheckSchedule(s, rules);
  CheckStages(shape, s, rules);
  rules.Divides("tp", s.tensor, "heads", shape.heads);
  rules.Divides("tp", s.tensor, "ffn", shape.feedforward);
  const int64_t layers = shape.layers + shape.mtp_layers;
  const int64_t parts = Product({s.pipeline, s.chunks});
  rules.Require(s.balances_ends || !s.layout.empty() || parts <= layers + 2,
                fmt::format("pp x vp: expected at most {} (layers, embedding "
                            "and logits), found {}",
                            layers + 2, parts));
  if (shape.IsMoe()) {
    rules.Divides("ep", s.expert, "experts", shape.experts);
    rules.Divides("etp", s.expert_tensor, "expert_ffn",
                  shape.expert_feedforward);
  } else {
    rules.Require(s.expert == 1,
                  fmt::format("ep: expected 1 for a model without experts, "
                              "found {}",
                              s.expert));
    rules.Require(s.expert_tensor == 1,
                  fmt::format("etp: expected 1 for a model without experts, "
                              "found {}",
                              s.expert_tensor));
  }
}

}  // namespace acplan::costmodel
