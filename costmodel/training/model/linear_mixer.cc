// The mixers of transformers' modules. `inputs` are the columns of all projections that read
// the hidden stream: what the mixer mixes, its gates, its decays. A state has a row for each
// key and a column for each value, in each head. In a chunk, each token is multiplied with
// half of the others: its scores with their keys, and then their values.
#include "costmodel/training/model/linear_mixer.h"

#include <fmt/format.h>

#include <optional>

namespace acplan::costmodel {
namespace {

using graph::JsonField;

// The chunk of flash-linear-attention's kernels.
constexpr int64_t kDeltaChunk = 64;

// The products of a delta rule for a pair of tokens of a chunk, in keys and in values:
// scores, and the inverse of the triangular matrix of keys with keys, applied to both.
int64_t DeltaProducts(int64_t heads, int64_t key, int64_t value) {
  return heads * (3 * key + 2 * value);
}

LinearMixer GatedDelta(ConfigKeys& config, const ModelShape& shape) {
  const auto or_heads = [&](std::string_view name) {
    return config.SizeOr({name}, shape.heads);
  };
  const int64_t key_heads = or_heads("linear_num_key_heads");
  const int64_t heads = or_heads("linear_num_value_heads");
  const int64_t key = config.Size({"linear_key_head_dim"});
  const int64_t value = config.Size({"linear_value_head_dim"});
  const int64_t keys = key_heads * key;
  const int64_t values = heads * value;
  const int64_t width = config.Size({"linear_conv_kernel_dim"});
  return {.inputs = 2 * keys + 2 * values + 2 * heads,
          .inner = values,
          .vectors = (2 * keys + values) * width + 2 * heads + value,
          .channels = 2 * keys + values,
          .state = values * key,
          .chunk = kDeltaChunk,
          .chunk_products = DeltaProducts(heads, key, value)};
}

// Returns a size that Kimi Linear's first files have in a part of its own.
int64_t KimiSize(ConfigKeys& config, std::string_view part_key,
                 KeyNames names) {
  const std::optional<JsonField> part = config.Find({"linear_attn_config"});
  if (part && part->Has(part_key)) return part->Get(part_key).Int(1, INT32_MAX);
  return config.Size(names);
}

LinearMixer KimiDelta(ConfigKeys& config, const ModelType& type,
                      const ModelShape& shape) {
  const bool has_low_rank = type.has_low_rank_gates;
  const bool has_heads = has_low_rank || config.Has({"linear_num_heads"});
  const int64_t heads =
      has_heads ? KimiSize(config, "num_heads", {"linear_num_heads"})
                : shape.heads;
  const int64_t dim = has_low_rank
                          ? KimiSize(config, "head_dim", {"linear_head_dim"})
                          : config.Size({"linear_head_dim", "head_dim"});
  const int64_t width =
      KimiSize(config, "short_conv_kernel_size",
               {"linear_conv_kernel_dim", "short_conv_kernel_size"});
  config.Supersede({"short_conv_kernel_size"});
  const int64_t inner = heads * dim;
  // A decay and a gate for each channel, by way of a head's dimension if of low rank.
  return {.inputs = 3 * inner + heads + 2 * (has_low_rank ? dim : inner),
          .inner = inner,
          .matrices = has_low_rank ? 2 * dim * inner : 0,
          .vectors = 3 * inner * width + heads + inner + dim,
          .channels = 3 * inner,
          .state = inner * dim,
          .chunk = kDeltaChunk,
          .chunk_products = DeltaProducts(heads, dim, dim)};
}

// Returns a size that may be written as "auto".
std::optional<int64_t> SizeUnlessAuto(ConfigKeys& config, KeyNames names) {
  const std::optional<JsonField> field = config.Find(names);
  if (!field || field->json().is_string()) return {};
  return field->Int(1, INT32_MAX);
}

LinearMixer StateSpace2(ConfigKeys& config, const ModelType& type,
                        const ModelShape& shape) {
  const int64_t expand = config.SizeOr({"mamba_expand", "expand"}, 2);
  const int64_t heads = config.Size({"mamba_n_heads", "mamba_num_heads"});
  const int64_t width = config.SizeOr({"mamba_d_ssm"}, expand * shape.hidden);
  const auto head = SizeUnlessAuto(config, {"mamba_d_head", "mamba_head_dim"});
  const int64_t inner = head ? heads * *head : width;
  const int64_t state = config.Size({"mamba_d_state", "ssm_state_size"});
  const int64_t groups = config.Size({"mamba_n_groups", "n_groups"}) * state;
  const int64_t conv = config.Size({"mamba_d_conv", "conv_kernel"});
  const bool has_conv_bias = config.Flag(
      config.Has({"mamba_conv_bias"}) ? "mamba_conv_bias" : "use_conv_bias",
      true);
  const bool has_bias = config.Flag(
      type.has_single_blocks ? "use_bias" : "mamba_proj_bias", false);
  // Falcon-H1 has a switch for the bias of the projection back.
  const bool has_output_bias = config.Flag("projectors_bias", has_bias);
  const bool has_norm = config.Flag("mamba_rms_norm", true);
  const int64_t inputs = 2 * inner + 2 * groups + heads;
  const int64_t channels = inner + 2 * groups;
  return {.inputs = inputs,
          .inner = inner,
          .vectors = channels * (conv + (has_conv_bias ? 1 : 0)) + 3 * heads +
                     (has_norm ? inner : 0) + (has_bias ? inputs : 0) +
                     (has_output_bias ? shape.hidden : 0),
          .channels = channels,
          .state = inner * state,
          .chunk = config.SizeOr({"mamba_chunk_size", "chunk_size"}, 256),
          .chunk_products = groups + inner};
}

LinearMixer StateSpace1(ConfigKeys& config, const ModelShape& shape) {
  const int64_t inner = config.Size({"mamba_expand"}) * shape.hidden;
  const int64_t state = config.Size({"mamba_d_state"});
  const int64_t rank = SizeUnlessAuto(config, {"mamba_dt_rank"})
                           .value_or((shape.hidden + 15) / 16);
  const int64_t conv = config.Size({"mamba_d_conv"});
  const bool has_conv_bias = config.Flag("mamba_conv_bias", true);
  const bool has_bias = config.Flag("mamba_proj_bias", false);
  return {.inputs = 2 * inner,
          .inner = inner,
          .matrices = inner * (rank + 2 * state) + rank * inner,
          .vectors = inner * (conv + (has_conv_bias ? 1 : 0)) + 2 * inner +
                     inner * state + rank + 2 * state +
                     (has_bias ? 2 * inner + shape.hidden : 0),
          .channels = inner,
          .state = inner * state};
}

LinearMixer Lightning(ConfigKeys& config, const ModelShape& shape) {
  const int64_t inner = shape.heads * shape.head_dim;
  return {.inputs = 4 * inner,
          .inner = inner,
          .vectors = inner,
          .state = inner * shape.head_dim,
          .chunk = config.SizeOr({"block_size"}, 256),
          .chunk_products = 2 * inner};
}

LinearMixer ShortConvolution(ConfigKeys& config, const ModelShape& shape) {
  const int64_t width = config.Size({"conv_L_cache"});
  const bool has_bias = config.Flag("conv_bias", false);
  return {.inputs = 3 * shape.hidden,
          .inner = shape.hidden,
          .vectors = shape.hidden * (width + (has_bias ? 5 : 0)),
          .channels = shape.hidden};
}

}  // namespace

LinearMixer ParseLinearMixer(ConfigKeys& config, const ModelType& type,
                             const ModelShape& shape) {
  switch (type.linear) {
    case LinearKind::kNone:
      break;
    case LinearKind::kGatedDelta:
      return GatedDelta(config, shape);
    case LinearKind::kKimiDelta:
      return KimiDelta(config, type, shape);
    case LinearKind::kStateSpace1:
      return StateSpace1(config, shape);
    case LinearKind::kStateSpace2:
      return StateSpace2(config, type, shape);
    case LinearKind::kLightning:
      return Lightning(config, shape);
    case LinearKind::kShortConvolution:
      return ShortConvolution(config, shape);
  }
  return {};
}

}  // namespace acplan::costmodel
