#include "cli/training/strategy_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "costmodel/training/settings/setting_names.h"
#include "costmodel/training/strategy/layout_text.h"

namespace acplan::cli {

namespace {

using costmodel::ContextExchange;
using costmodel::TrainingJob;
using costmodel::TrainingStrategy;
using nlohmann::ordered_json;

std::string Degree(std::string_view name, int64_t degree) {
  return degree > 1 ? fmt::format("{} {}, ", name, degree) : std::string();
}

std::string_view NameOf(costmodel::PipelineSchedule schedule) {
  using enum costmodel::PipelineSchedule;
  switch (schedule) {
    case kOneForwardOneBackward:
      return "1F1B";
    case kInterleaved:
      return "Interleaved1F1B";
    case kZeroBubble:
      return "zero_bubble";
    case kZeroBubbleV:
      return "ZBVZeroBubble";
    case kHalfV:
      return "VHalf";
    case kMinV:
      return "VMin";
    case kDualPipe:
      return "DualPipe";
  }
  return "";
}

std::string_view NameOf(ContextExchange exchange) {
  using enum ContextExchange;
  return exchange == kRing        ? "p2p"
         : exchange == kAllGather ? "all_gather"
                                  : "a2a";
}

std::string_view NameOf(costmodel::AttentionKernel kernel) {
  using enum costmodel::AttentionKernel;
  return kernel == kUnfused ? "unfused" : kernel == kFlash ? "flash" : "fused";
}

std::string_view NameOf(costmodel::CudaGraphs graphs) {
  using enum costmodel::CudaGraphs;
  return graphs == kNone ? "none" : graphs == kPartial ? "partial" : "full";
}

std::string_view TypeOfBytes(double bytes) {
  return bytes == 4 ? "fp32" : "bf16";
}

ordered_json DegreesJson(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  return {{"gpu", job.cluster.gpu.name},
          {"software", job.cluster.stack.name},
          {"gpus", s.gpus},
          {"seq", s.sequence},
          {"gbs", s.global_batch},
          {"mbs", s.microbatch},
          {"tp", s.tensor},
          {"sp", s.sequence_parallel},
          {"pp", s.pipeline},
          {"vp", s.chunks},
          {"cp", s.context},
          {"ep", s.expert},
          {"dp", s.Data()},
          {"zero", s.zero},
          {"precision", std::string(costmodel::NameOf(s.precision))},
          {"recompute", RecomputationText(s)},
          {"nvlink_domain", job.cluster.domain},
          {"network_gbs", job.cluster.network_rate / 1e9}};
}

}  // namespace

std::string StrategyText(const TrainingStrategy& s) {
  std::string text =
      fmt::format("{}{}", Degree("TP", s.tensor), Degree("PP", s.pipeline));
  if (s.chunks > 1) {
    text.resize(text.size() - 2);
    text += fmt::format(" x {} chunks, ", s.chunks);
  }
  text += Degree("CP", s.context);
  if (s.context > 1 && s.context_exchange != ContextExchange::kRing) {
    text.insert(text.size() - 2,
                fmt::format(" ({})", NameOf(s.context_exchange)));
  }
  text += Degree("EP", s.expert) + Degree("ETP", s.expert_tensor);
  text += fmt::format("DP {}, ZeRO {}", s.Data(), s.zero);
  if (s.optimizer_copies > 1) {
    text += fmt::format(" in {} groups", s.optimizer_copies);
  }
  using enum costmodel::PipelineSchedule;
  if (s.schedule != kOneForwardOneBackward && s.schedule != kInterleaved) {
    text += fmt::format(", {}", NameOf(s.schedule));
  }
  return text;
}

std::string RecomputationText(const TrainingStrategy& s) {
  switch (s.recomputation) {
    case costmodel::Recomputation::kNone:
      return "none";
    case costmodel::Recomputation::kFull:
      if (s.every_layers > 0) return fmt::format("every:{}", s.every_layers);
      return s.full_layers > 0 ? fmt::format("full:{}", s.full_layers) : "full";
    case costmodel::Recomputation::kOperators:
      return "selective:op";
    case costmodel::Recomputation::kPlan:
      return "plan";
    case costmodel::Recomputation::kSelective:
      return "selective:" + costmodel::NamesOf(s.parts);
  }
  return "";
}

ordered_json StrategyJson(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  ordered_json json = DegreesJson(job);
  if (s.pipeline > 1) json["pp_schedule"] = std::string(NameOf(s.schedule));
  const auto add = [&](const char* key, const auto& value, bool is_needed) {
    if (is_needed) json[key] = value;
  };
  add("first_layers", s.first_layers, s.first_layers > 0);
  add("last_layers", s.last_layers, s.last_layers > 0);
  add("counts_embedding", true, s.counts_embedding);
  add("counts_logits", true, s.counts_logits);
  if (!s.layout.empty()) {
    json["pipeline_model_parallel_layout"] =
        costmodel::LayoutText(s.layout, job.shape);
  }
  add("cp_comm_type", std::string(NameOf(s.context_exchange)),
      s.context > 1 && s.context_exchange != ContextExchange::kRing);
  add("etp", s.expert_tensor, s.expert_tensor > 1);
  add("optimizer_copies", s.optimizer_copies, s.optimizer_copies > 1);
  add("lora_rank", s.lora_rank, s.lora_rank > 0);
  add("lora_targets", "attention", s.lora_attention_only);
  add("base_weights", "nf4", s.has_four_bit_base);
  add("source_seq", s.source, s.source > 0);
  add("images", s.images, s.images > 0);
  add("image_patches", s.image_patches, s.image_patches > 0);
  add("freeze_towers", true, s.freezes_towers);
  add("offload_layers", s.offloaded_layers, s.offloaded_layers > 0);
  add("offload_states", true, s.offloads_states);
  // Every positive share of dropout costs the same.
  add("hidden_dropout", .1, s.drops_hidden);
  add("attention_dropout", .1, s.drops_scores);
  add("embedding_dropout", .1, s.drops_embedding);
  json["attention"] = std::string(NameOf(s.attention));
  json["implementation"] =
      s.implementation == costmodel::Implementation::kEager ? "eager" : "fused";
  json["grad_dtype"] = std::string(TypeOfBytes(s.gradient_bytes));
  json["grad_reduce_dtype"] = std::string(TypeOfBytes(s.gradient_reduce_bytes));
  json["optimizer_bytes"] = s.optimizer_bytes;
  json["cuda_graphs"] = std::string(NameOf(s.graphs));
  json["overlap_dp"] = s.overlaps_data;
  json["overlap_tp"] = s.overlaps_tensor;
  json["overlap_ep"] = s.overlaps_expert;
  json["dispatcher"] = s.dedupes_tokens ? "deepep" : "alltoall";
  json["grouped_gemm"] = s.fuses_experts;
  return json;
}

}  // namespace acplan::cli
