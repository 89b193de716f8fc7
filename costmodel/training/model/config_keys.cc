#include "costmodel/training/model/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

constexpr int64_t kMostSize = INT32_MAX;

// Keys that change neither a model's memory nor its time, by parts of their names.
constexpr auto kHarmless =
    std::to_array<std::string_view>({"_token_id",
                                     "token_index",
                                     "_eps",
                                     "epsilon",
                                     "initializer",
                                     "rope",
                                     "rotary",
                                     "_theta",
                                     "_coef",
                                     "scal",
                                     "multiplier",
                                     "softcap",
                                     "_act",
                                     "activation",
                                     "jitter",
                                     "transformers_version",
                                     "dtype",
                                     "use_cache",
                                     "auto_map",
                                     "architectures",
                                     "_name_or_path",
                                     "id2label",
                                     "label2id",
                                     "output_",
                                     "return_dict",
                                     "torchscript",
                                     "pruned_",
                                     "position_embedding",
                                     "max_position",
                                     "norm_topk",
                                     "topk_method",
                                     "scoring_func",
                                     "pretraining_tp",
                                     "chunk_size_feed_forward",
                                     "problem_type",
                                     "is_decoder",
                                     "is_encoder_decoder",
                                     "task_specific_params",
                                     "tokenizer",
                                     "tf_",
                                     "finetuning",
                                     "summary_",
                                     "aux_loss",
                                     "quantization",
                                     "init_std",
                                     "init_method",
                                     "attn_impl",
                                     "_attn_implementation",
                                     "model_type",
                                     "temperature",
                                     "_alpha",
                                     "swiglu_limit",
                                     "query_pre_attn",
                                     "clip_qkv",
                                     "bidirectional",
                                     "floor_scale",
                                     "attn_scale",
                                     "router_z_loss",
                                     "ep_size",
                                     "max_length",
                                     "min_length",
                                     "num_beams",
                                     "do_sample",
                                     "top_p",
                                     "length_penalty",
                                     "repetition_penalty",
                                     "gradient_checkpointing",
                                     "no_rope_layers",
                                     "no_rope_layer_interval",
                                     "router_bias_update",
                                     "norm_min",
                                     "swa_rope",
                                     "num_labels",
                                     "remove_invalid",
                                     "prefix",
                                     "bad_words",
                                     "diversity",
                                     "typical_p",
                                     "cross_attention_hidden_size",
                                     "qk_head_dim",
                                     "fp32",
                                     "num_image_tokens",
                                     "cache_implementation",
                                     "context_length",
                                     "use_bfloat16",
                                     "zero_init",
                                     "alibi_bias_max",
                                     "attn_pdrop",
                                     "seq_aux",
                                     "tie_encoder_decoder"});

// Names of parts that the models here do not have.
constexpr auto kForeign =
    std::to_array<std::string_view>({"mamba",
                                     "ssm",
                                     "state_space",
                                     "linear_attn",
                                     "linear_num",
                                     "linear_key",
                                     "linear_value",
                                     "linear_conv",
                                     "conv_",
                                     "recurrent",
                                     "delta",
                                     "kda",
                                     "index_",
                                     "indexer",
                                     "altup",
                                     "laurel",
                                     "per_layer_input",
                                     "kv_shared",
                                     "lru_",
                                     "attn_layer",
                                     "block_type",
                                     "hybrid",
                                     "cross_attention_layers",
                                     "attn_type",
                                     "layer_type"});
constexpr auto kOfExperts = std::to_array<std::string_view>(
    {"expert", "moe", "kv_lora_rank", "q_lora_rank"});

bool ContainsAny(std::string_view key, const auto& words) {
  return std::ranges::any_of(words, [&](std::string_view word) {
    return key.find(word) != std::string_view::npos;
  });
}

// Returns whether a value is null, false, zero, or empty.
bool SaysNothing(const nlohmann::json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.empty() ||
         (value.is_string() && value.get<std::string>().empty());
}

// Returns whether a key is a size that every file has.
bool IsMainSize(std::string_view name) {
  return name == "vocab_size" || name == "hidden_size" ||
         name == "intermediate_size" || name == "num_hidden_layers" ||
         name == "num_attention_heads";
}

}  // namespace

ConfigKeys::ConfigKeys(JsonField config, std::string_view defaults,
                       bool is_part)
    : config_(std::move(config)),
      default_document_(graph::ParseJson(defaults, "defaults")),
      defaults_(default_document_, "defaults"),
      is_part_(is_part) {}

std::optional<JsonField> ConfigKeys::Find(KeyNames names) {
  bool is_said = false;
  std::optional<JsonField> field;
  for (const std::string_view name : names) {
    if (!config_.json().contains(name)) continue;
    used_keys_.emplace(name);
    is_said = true;
    if (!field && config_.Has(name)) field = config_.Get(name);
  }
  if (is_said || (!is_part_ && IsMainSize(*names.begin()))) return field;
  for (const std::string_view name : names) {
    if (defaults_.Has(name)) return defaults_.Get(name);
  }
  return {};
}

int64_t ConfigKeys::Size(KeyNames names) {
  const std::optional<JsonField> field = Find(names);
  if (!field) return config_.Get(*names.begin()).Int(1, kMostSize);
  return field->Int(1, kMostSize);
}

int64_t ConfigKeys::SizeOr(KeyNames names, int64_t fallback) {
  const std::optional<JsonField> field = Find(names);
  return field ? field->Int(0, kMostSize) : fallback;
}

bool ConfigKeys::Flag(std::string_view name, bool fallback) {
  const std::optional<JsonField> field = Find({name});
  return field ? field->Bool() : fallback;
}

double ConfigKeys::Share(KeyNames names) {
  const std::optional<JsonField> field = Find(names);
  if (!field) return 0;
  const double share = field->NonNegativeNumber();
  if (share > 1) field->Fail("a number from 0 to 1");
  return share;
}

std::vector<int64_t> ConfigKeys::Numbers(std::string_view name) {
  std::vector<int64_t> numbers;
  const std::optional<JsonField> field = Find({name});
  if (!field) return numbers;
  for (const JsonField& element : field->Elements()) {
    numbers.push_back(element.Int(0, kMostSize));
  }
  return numbers;
}

void ConfigKeys::Ignore(std::string_view beginning) {
  for (const auto& [key, value] : config_.json().items()) {
    if (key.starts_with(beginning)) used_keys_.insert(key);
  }
}

std::vector<std::string> ForeignKeys(const JsonField& config) {
  std::vector<std::string> foreign;
  for (const auto& [key, value] : config.json().items()) {
    if (!SaysNothing(value) && key != "layer_types" &&
        key != "mlp_layer_types" && !ContainsAny(key, kHarmless) &&
        ContainsAny(key, kForeign)) {
      foreign.push_back(graph::OneLine(key));
    }
  }
  return foreign;
}

std::vector<std::string> ConfigKeys::UnusedKeys(bool has_experts) const {
  std::vector<std::string> unused;
  for (const auto& [key, value] : config_.json().items()) {
    if (used_keys_.contains(key) || SaysNothing(value)) continue;
    if (ContainsAny(key, kHarmless)) continue;
    if (ContainsAny(key, kForeign) ||
        (!has_experts && ContainsAny(key, kOfExperts))) {
      config_.Get(key).Fail(
          "no value, as models of this model_type have no such part, or acplan "
          "does not model it");
    }
    unused.push_back(key);
  }
  return unused;
}

}  // namespace acplan::costmodel
