// The keys that three programs use for the same settings. A key is looked up with its
// section ("activation_checkpoint.mode"), then alone. Some values are synonyms of acplan's;
// they are translated here, so that all later code knows one language.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "costmodel/training/settings/strategy_settings.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

struct KeyName {
  std::string_view name;  // a program's name
  std::string_view key;   // acplan's name
};

constexpr KeyName kKeyNames[] = {
    // Megatron-LM.
    {"world_size", "gpus"},
    {"num_gpus", "gpus"},
    {"seq_length", "seq"},
    {"global_batch_size", "gbs"},
    {"micro_batch_size", "mbs"},
    {"tensor_model_parallel_size", "tp"},
    {"sequence_parallel", "sp"},
    {"pipeline_model_parallel_size", "pp"},
    {"virtual_pipeline_model_parallel_size", "vp"},
    {"num_virtual_stages_per_pipeline_rank", "vp"},
    {"num_layers_per_virtual_pipeline_stage", "vp_layers"},
    {"decoder_first_pipeline_num_layers", "first_layers"},
    {"num_layers_in_first_pipeline_stage", "first_layers"},
    {"decoder_last_pipeline_num_layers", "last_layers"},
    {"num_layers_in_last_pipeline_stage", "last_layers"},
    {"account_for_embedding_in_pipeline_split", "counts_embedding"},
    {"account_for_loss_in_pipeline_split", "counts_logits"},
    {"pipeline_model_parallel_layout", "layout"},
    {"context_parallel_size", "cp"},
    {"expert_model_parallel_size", "ep"},
    {"expert_tensor_parallel_size", "etp"},
    {"use_distributed_optimizer", "dist_opt"},
    {"data_parallel_sharding_strategy", "sharding"},
    {"num_distributed_optimizer_instances", "optimizer_copies"},
    {"recompute_granularity", "granularity"},
    {"recompute_method", "method"},
    {"recompute_num_layers", "recompute_layers"},
    {"recompute_modules", "modules"},
    {"fp8_format", "fp8"},
    {"main_grads_dtype", "grad_dtype"},
    {"accumulate_allreduce_grads_in_fp32", "grads_fp32"},
    {"grad_reduce_in_bf16", "grads_bf16"},
    {"attention_backend", "attention"},
    {"use_flash_attn", "flash_attn"},
    {"cpu_offloading_num_layers", "offload_layers"},
    {"peft.dim", "lora_rank"},
    {"cuda_graph_impl", "cuda_graphs"},
    {"overlap_grad_reduce", "overlap_dp"},
    {"tp_comm_overlap", "overlap_tp"},
    {"overlap_moe_expert_parallel_comm", "overlap_ep"},
    {"moe_token_dispatcher_type", "dispatcher"},
    {"moe_flex_dispatcher_backend", "flex_backend"},
    {"moe_enable_deepep", "deepep"},
    {"moe_grouped_gemm", "grouped_gemm"},
    // torchtitan.
    {"training.seq_len", "seq"},
    {"seq_len", "seq"},
    {"training.global_batch_size", "gbs"},
    {"training.local_batch_size", "local_batch"},
    {"local_batch_size", "local_batch"},
    {"parallelism.pipeline_parallel_microbatch_size", "mbs"},
    {"pipeline_parallel_microbatch_size", "mbs"},
    {"tensor_parallel_degree", "tp"},
    {"pipeline_parallel_degree", "pp"},
    {"pipeline_parallel_schedule", "pp_schedule"},
    {"context_parallel_degree", "cp"},
    {"context_parallel_rotate_method", "cp_comm_type"},
    {"expert_parallel_degree", "ep"},
    {"expert_tensor_parallel_degree", "etp"},
    {"data_parallel_shard_degree", "shard_degree"},
    {"data_parallel_replicate_degree", "replicate_degree"},
    {"enable_async_tensor_parallel", "overlap_tp"},
    {"activation_checkpoint.mode", "ac_mode"},
    {"activation_checkpoint.selective_ac_option", "ac_option"},
    {"selective_ac_option", "ac_option"},
    {"mixed_precision_reduce", "grad_reduce_dtype"},
    {"float8.recipe_name", "fp8_recipe"},
    // Hugging Face transformers.
    {"resid_pdrop", "hidden_dropout"},
    {"resid_dropout", "hidden_dropout"},
    {"hidden_dropout_prob", "hidden_dropout"},
    {"residual_dropout", "hidden_dropout"},
    {"attn_pdrop", "attention_dropout"},
    {"attn_dropout", "attention_dropout"},
    {"attention_probs_dropout_prob", "attention_dropout"},
    {"embd_pdrop", "embedding_dropout"},
    {"emb_pdrop", "embedding_dropout"},
};

// acplan's own.
constexpr std::string_view kKeys[] = {
    "gpus",
    "gpu",
    "software",
    "seq",
    "gbs",
    "mbs",
    "tp",
    "sp",
    "pp",
    "vp",
    "vp_layers",
    "pp_schedule",
    "first_layers",
    "last_layers",
    "counts_embedding",
    "counts_logits",
    "layout",
    "cp",
    "cp_comm_type",
    "ep",
    "etp",
    "dp",
    "zero",
    "dist_opt",
    "sharding",
    "shard_degree",
    "replicate_degree",
    "optimizer_copies",
    "local_batch",
    "recompute",
    "granularity",
    "method",
    "recompute_layers",
    "modules",
    "ac_mode",
    "ac_option",
    "precision",
    "bf16",
    "fp16",
    "fp8",
    "fp8_recipe",
    "fp4",
    "grad_dtype",
    "grad_reduce_dtype",
    "grads_fp32",
    "grads_bf16",
    "attention",
    "flash_attn",
    "offload_layers",
    "offload_states",
    "lora_rank",
    "lora_targets",
    "base_weights",
    "source_seq",
    "images",
    "image_patches",
    "freeze_towers",
    "cuda_graphs",
    "overlap_dp",
    "overlap_tp",
    "overlap_ep",
    "dispatcher",
    "flex_backend",
    "deepep",
    "grouped_gemm",
    "dropout",
    "hidden_dropout",
    "attention_dropout",
    "embedding_dropout",
    "implementation",
    "optimizer_bytes",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "nvlink_domain",
    "network_gbs",
};

std::string Underscored(std::string_view text) {
  std::string name(text);
  std::ranges::replace(name, '-', '_');
  return name;
}

// Returns acplan's name for a key, which is looked up as a whole, and without its section
// if that is unknown. Returns an empty text if the key is unknown.
std::string_view KeyOf(std::string_view name) {
  for (const KeyName& key_name : kKeyNames) {
    if (key_name.name == name) return key_name.key;
  }
  for (const std::string_view key : kKeys) {
    if (key == name) return key;
  }
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view()
                                       : KeyOf(name.substr(dot + 1));
}

[[noreturn]] void FailOfKey(std::string_view name, std::string_view place) {
  std::vector<std::string> known_names;
  for (const KeyName& key : kKeyNames) known_names.emplace_back(key.name);
  for (const std::string_view key : kKeys) known_names.emplace_back(key);
  const std::vector<std::string> nearest =
      graph::NearestNames(name, known_names);
  throw InputError(fmt::format(
      "{}: expected a setting of a strategy, by its name in acplan, "
      "Megatron-LM or torchtitan{}{}",
      place, nearest.empty() ? "" : "; near: ", fmt::join(nearest, ", ")));
}

std::string TextOf(const JsonField& field) {
  const nlohmann::json& json = field.json();
  if (json.is_boolean()) return json.get<bool>() ? "true" : "false";
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number()) return graph::CompactText(json);
  if (json.is_array())
    return fmt::format("{}", fmt::join(field.Strings(), "+"));
  field.Fail("a number, true, false, a text or a list of texts");
}

struct NamedField {
  std::string path;  // with its sections
  JsonField field;
};

// Returns all values, including those in sections.
std::vector<NamedField> FieldsOf(const JsonField& object,
                                 const std::string& section) {
  std::vector<NamedField> fields;
  for (const auto& [name, value] : object.json().items()) {
    if (value.is_null()) continue;
    const std::string path = section + name;
    if (!value.is_object()) {
      fields.push_back({path, object.Get(name)});
      continue;
    }
    const std::vector<NamedField> inner =
        FieldsOf(object.Get(name), path + ".");
    fields.insert(fields.end(), inner.begin(), inner.end());
  }
  return fields;
}

}  // namespace

std::pair<std::string, StrategySetting> NamedSetting(std::string_view key,
                                                     std::string_view value,
                                                     std::string place) {
  const std::string name = Underscored(key);
  const std::string_view known_key = KeyOf(name);
  if (known_key.empty()) FailOfKey(name, place);
  return {std::string(known_key), {std::string(value), std::move(place)}};
}

StrategySettings ParseStrategySettings(std::string_view text,
                                       std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  return SettingsOf(JsonField(document, std::string(file)), file);
}

StrategySettings SettingsOf(const JsonField& object, std::string_view place) {
  if (!object.json().is_object()) object.Fail("an object of settings");
  StrategySettings settings;
  for (const auto& [path, field] : FieldsOf(object, "")) {
    const auto [key, setting] =
        NamedSetting(path, TextOf(field), fmt::format("{}: {}", place, path));
    const auto [entry, is_new] = settings.emplace(key, setting);
    if (is_new || entry->second.value == setting.value) continue;
    throw InputError(
        fmt::format("{}: expected {} as of {}, found {}", setting.place,
                    graph::Quoted(entry->second.value), entry->second.place,
                    graph::Quoted(setting.value)));
  }
  return settings;
}

}  // namespace acplan::costmodel
