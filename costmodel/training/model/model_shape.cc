#include "costmodel/training/model/model_shape.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

double AttentionParameters(const ModelShape& shape) {
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  const double hidden = d(shape.hidden);
  const double heads = d(shape.heads);
  const double output =
      (heads * d(shape.ValueDim()) + d(shape.attention_gate)) * hidden;
  if (!shape.IsLatent()) {
    return hidden * (heads + 2 * d(shape.kv_heads)) * d(shape.head_dim) +
           output;
  }
  const double queries = heads * d(shape.QueryDim());
  const double query =
      shape.q_rank > 0 ? hidden * d(shape.q_rank) + d(shape.q_rank) * queries
                       : hidden * queries;
  const double keys = hidden * d(shape.kv_rank + shape.qk_rope) +
                      d(shape.kv_rank) * heads * d(shape.qk_nope + shape.v_dim);
  return query + keys + output;
}

// Returns the elements of the matrices of an indexer. Its queries read the low rank of
// attention's queries.
double IndexerParameters(const ModelShape& shape) {
  const AttentionIndexer& index = shape.indexer;
  return static_cast<double>(shape.q_rank * index.heads * index.head_dim +
                             shape.hidden * (index.head_dim + index.heads));
}

double LinearParameters(const ModelShape& shape) {
  const LinearMixer& linear = shape.linear;
  return static_cast<double>(shape.hidden * (linear.inputs + linear.inner) +
                             linear.matrices);
}

// Returns the elements of the norms inside of attention.
double AttentionNorms(const ModelShape& shape) {
  const double vectors = static_cast<double>(shape.norm_weights);
  double count = 0;
  if (shape.IsLatent()) {
    count += static_cast<double>(shape.q_rank + shape.kv_rank);
  }
  if (shape.form.qk_norm == QkNorm::kHeads) {
    count += static_cast<double>(2 * shape.head_dim) * vectors;
  }
  if (shape.form.qk_norm == QkNorm::kWhole) {
    count += static_cast<double>(shape.heads + shape.kv_heads) *
             static_cast<double>(shape.head_dim);
  }
  return count;
}

// Returns the elements of the bias of queries, keys and values. With latent attention it
// belongs to the down projections.
double QueryBias(const ModelShape& shape) {
  if (shape.IsLatent()) {
    return static_cast<double>(shape.q_rank + shape.kv_rank + shape.qk_rope);
  }
  const int64_t gate = shape.has_gate_bias ? shape.attention_gate : 0;
  return static_cast<double>(shape.heads + 2 * shape.kv_heads) *
             static_cast<double>(shape.head_dim) +
         static_cast<double>(gate);
}

// Returns the elements of the biases of attention to an encoder's result.
double CrossBiases(const ModelShape& shape) {
  if (!shape.has_cross_attention) return 0;
  return (shape.has_query_bias ? QueryBias(shape) : 0) +
         (shape.has_output_bias ? static_cast<double>(shape.hidden) : 0);
}

// Returns the elements of norms and biases that belong to attention and linear mixers.
double MixerVectors(const ModelShape& shape) {
  double attention = AttentionNorms(shape) + CrossBiases(shape);
  if (shape.has_query_bias) attention += QueryBias(shape);
  if (shape.has_output_bias) attention += static_cast<double>(shape.hidden);
  // The norm of an indexer's keys has a scale and a bias.
  return shape.AttentionShare() * attention +
         shape.LinearShare() * static_cast<double>(shape.linear.vectors) +
         shape.IndexerShare() * static_cast<double>(2 * shape.indexer.head_dim);
}

double BiasParameters(const ModelShape& shape, bool is_moe) {
  const double hidden = static_cast<double>(shape.hidden);
  // A gated feed-forward has two up projections.
  const int64_t ups = shape.FeedforwardMatrices() - 1;
  double count = 0;
  const int64_t width = is_moe ? shape.shared_feedforward : shape.feedforward;
  if (shape.has_feedforward_bias && width > 0) {
    count += (is_moe ? 1 : shape.DenseShare()) *
             (hidden + static_cast<double>(ups) * static_cast<double>(width));
  }
  if (shape.has_expert_bias && is_moe) {
    count += static_cast<double>(shape.experts);
  }
  return count;
}

double AllLayers(const ModelShape& shape, bool active_only) {
  const auto of_layer = [&](bool is_moe) {
    const LayerParameters p = CountLayerParameters(shape, is_moe);
    const double share = active_only && is_moe
                             ? static_cast<double>(shape.top_k) /
                                   static_cast<double>(shape.experts)
                             : 1;
    return p.attention + p.dense + p.router + share * p.experts;
  };
  const int64_t all = shape.layers + shape.mtp_layers;
  const int64_t moe = shape.IsMoe() ? shape.MoeLayers() + shape.mtp_layers : 0;
  return static_cast<double>(moe) * (moe > 0 ? of_layer(true) : 0) +
         static_cast<double>(all - moe) * of_layer(false) +
         static_cast<double>((shape.is_tied ? 1 : 2) * shape.vocabulary *
                             shape.hidden);
}

}  // namespace

LayerParameters CountLayerParameters(const ModelShape& shape, bool is_moe) {
  const double hidden = static_cast<double>(shape.hidden);
  const double matrices = static_cast<double>(shape.FeedforwardMatrices());
  LayerParameters count{
      .attention = (shape.has_cross_attention ? 2 : 1) *
                       shape.AttentionShare() * AttentionParameters(shape) +
                   shape.LinearShare() * LinearParameters(shape) +
                   shape.IndexerShare() * IndexerParameters(shape)};
  if (is_moe) {
    count.experts = static_cast<double>(shape.experts) * matrices * hidden *
                    static_cast<double>(shape.expert_feedforward);
    count.dense =
        matrices * hidden * static_cast<double>(shape.shared_feedforward);
    count.router = hidden * static_cast<double>(shape.experts);
    if (shape.has_expert_bias) {
      const int64_t ups = shape.FeedforwardMatrices() - 1;
      count.expert_vectors =
          static_cast<double>(shape.experts) *
          (hidden + static_cast<double>(ups * shape.expert_feedforward));
    }
  } else {
    count.dense = shape.DenseShare() * matrices * hidden *
                  static_cast<double>(shape.feedforward);
  }
  const double norms = static_cast<double>(shape.block_norms * shape.hidden) *
                       static_cast<double>(shape.norm_weights);
  count.replicated = norms + MixerVectors(shape) +
                     BiasParameters(shape, is_moe) +
                     static_cast<double>(shape.layer_vectors +
                                         (is_moe ? shape.moe_vectors : 0));
  return count;
}

double EmbeddingVectors(const ModelShape& shape) {
  const double hidden = static_cast<double>(shape.hidden);
  const double positions = static_cast<double>(shape.learned_positions);
  return hidden * positions + (shape.form.has_embedding_norm ? 2 * hidden : 0);
}

double LogitsVectors(const ModelShape& shape) {
  const double norm = static_cast<double>(shape.hidden) *
                      static_cast<double>(shape.norm_weights);
  return (shape.has_final_norm ? norm : 0) +
         (shape.has_logits_bias ? static_cast<double>(shape.vocabulary) : 0);
}

double StackParameters(const Tower& tower) {
  const LayerParameters layer = CountLayerParameters(*tower.stack, false);
  return static_cast<double>(tower.stack->layers) *
             (layer.attention + layer.dense + layer.replicated) +
         static_cast<double>(tower.outer_parameters);
}

int64_t ImageTokens(const Tower& tower, int64_t patches) {
  return (patches + tower.merged_patches - 1) / tower.merged_patches;
}

double CountParameters(const ModelShape& shape) {
  const auto all = [&](bool is_moe) {
    const LayerParameters p = CountLayerParameters(shape, is_moe);
    return p.attention + p.dense + p.experts + p.router + p.replicated +
           p.expert_vectors;
  };
  const int64_t moe = shape.MoeLayers();
  double sum = EmbeddingVectors(shape) + LogitsVectors(shape) +
               static_cast<double>((shape.is_tied ? 1 : 2) * shape.vocabulary *
                                   shape.hidden);
  if (moe > 0) sum += static_cast<double>(moe) * all(true);
  if (moe < shape.layers) {
    sum += static_cast<double>(shape.layers - moe) * all(false);
  }
  for (const Tower& tower : shape.towers) {
    sum += StackParameters(tower) +
           static_cast<double>(tower.projector_parameters);
  }
  return std::round(
      sum);  // means over the layers of a hybrid are no whole numbers
}

double CountMatrixParameters(const ModelShape& shape) {
  return AllLayers(shape, false);
}

double CountActiveMatrixParameters(const ModelShape& shape) {
  return AllLayers(shape, true);
}

double CountActiveParameters(const ModelShape& shape) {
  const double all = CountParameters(shape);
  if (!shape.IsMoe()) return all;
  const LayerParameters layer = CountLayerParameters(shape, true);
  const double idle = static_cast<double>(shape.experts - shape.top_k) /
                      static_cast<double>(shape.experts);
  return std::round(all - static_cast<double>(shape.MoeLayers()) * idle *
                              (layer.experts + layer.expert_vectors));
}

void CheckShape(const ModelShape& shape, std::string_view place) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("{}: {}", place, what));
  };
  if (shape.layers > kMostLayers) {
    fail(fmt::format("expected at most {} layers, found {}", kMostLayers,
                     shape.layers));
  }
  if (!shape.IsLatent() && shape.heads % shape.kv_heads != 0) {
    fail(
        fmt::format("expected a number of heads that kv_heads divides, found "
                    "{} heads and {} kv_heads",
                    shape.heads, shape.kv_heads));
  }
  if (shape.IsLatent() &&
      (shape.v_dim < 1 || shape.qk_nope < 1 || shape.qk_rope < 1)) {
    fail(
        "latent attention needs its dimensions of values, of queries with and "
        "without position, each at least 1");
  }
  if (shape.full_layers > shape.AttentionLayers()) {
    fail(fmt::format("expected at most {} layers of full attention, found {}",
                     shape.AttentionLayers(), shape.full_layers));
  }
  if (!shape.IsMoe()) return;
  if (shape.top_k < 1 || shape.top_k > shape.experts) {
    fail(fmt::format("expected from 1 to {} experts per token, found {}",
                     shape.experts, shape.top_k));
  }
  if (shape.expert_feedforward < 1) fail("experts need the width of an expert");
  if (shape.dense_layers > shape.layers) {
    fail(fmt::format("expected at most {} dense layers, found {}", shape.layers,
                     shape.dense_layers));
  }
}

}  // namespace acplan::costmodel
