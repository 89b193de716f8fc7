#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/model/eager_form.h"

namespace acplan::costmodel {

constexpr int64_t kMostLayers = 100000;

// The vectors of a norm.
enum class NormWeights { kNone = 0, kScale = 1, kScaleAndBias = 2 };

// What a decoder-only transformer is made of: sizes, not weights. Sizes are
// elements, counts are counts; 0 is "has none" where nothing else is said.
struct ModelShape {
  int64_t layers = 0;  // those of multi-token prediction not counted
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;     // of queries and keys
  int64_t feedforward = 0;  // width of a dense feed-forward
  int64_t vocabulary = 0;
  bool is_gated = false;  // a feed-forward has three matrices, not two
  // Biases: of queries, keys and values, of attention's output, of the dense
  // feed-forward, of router and experts, of the logits.
  bool has_query_bias = false;
  bool has_output_bias = false;
  bool has_feedforward_bias = false;
  bool has_expert_bias = false;
  bool has_logits_bias = false;
  NormWeights norm_weights = NormWeights::kScale;
  int64_t block_norms = 2;  // of the hidden size, in a layer
  bool has_rope = false;
  bool is_tied = false;  // logits are made with the embedding's weight
  int64_t learned_positions = 0;
  // Elements of other vectors, in each layer, and in each with experts.
  int64_t layer_vectors = 0;
  int64_t moe_vectors = 0;

  // Of attention: 0 is full; else each query sees so many keys, in all layers but
  // `full_layers`. Chunks: of as many, but none of the chunks before its own.
  int64_t sliding_window = 0;
  int64_t full_layers = 0;
  bool has_chunks = false;

  // Mixture of experts.
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert_feedforward = 0;
  int64_t shared_feedforward = 0;  // of all shared experts together
  int64_t dense_layers = 0;        // which are not MoE
  // Of each layer whether it has experts; empty: all but the first ones have.
  std::vector<bool> moe_pattern = {};
  int64_t mtp_layers = 0;
  int64_t routed_groups = 0;  // of experts that a token may go to; 0: all
  bool is_clamped = false;  // the activation is limited, by kernels of its own

  // Multi-head latent attention.
  int64_t q_rank = 0;  // 0: queries have no low rank
  int64_t kv_rank = 0;
  int64_t qk_nope = 0;
  int64_t qk_rope = 0;
  int64_t v_dim = 0;  // of a head; head_dim where there is no latent attention

  // Shares that the configuration says are dropped out.
  double hidden_dropout = 0;
  double attention_dropout = 0;
  double embedding_dropout = 0;

  ModuleForm form = {};  // how transformers writes it

  bool IsMoe() const { return experts > 0; }
  bool IsMoeLayer(int64_t layer) const {
    if (!IsMoe()) return false;
    const auto i = static_cast<size_t>(layer);
    return i < moe_pattern.size() ? moe_pattern[i] : layer >= dense_layers;
  }
  // Of its layers, those of prediction not counted.
  int64_t MoeLayers() const { return IsMoe() ? layers - dense_layers : 0; }
  // The share of the layers that attend to everything.
  double FullShare() const {
    return sliding_window == 0
               ? 1
               : static_cast<double>(full_layers) / static_cast<double>(layers);
  }
  void SetBiases(bool has) {
    has_query_bias = has_output_bias = has_feedforward_bias = has;
  }
  bool IsLatent() const { return kv_rank > 0; }
  // The dimension of a head's values.
  int64_t ValueDim() const { return IsLatent() ? v_dim : head_dim; }
  int64_t QueryDim() const { return IsLatent() ? qk_nope + qk_rope : head_dim; }
  // The matrices of a feed-forward.
  int64_t FeedforwardMatrices() const { return is_gated ? 3 : 2; }
};

// Elements of the weights of one layer, by what shards them.
struct LayerParameters {
  double attention = 0;  // matrices, split by tensor parallelism
  double dense = 0;      // of the feed-forward and of shared experts
  double experts = 0;    // of all experts
  double router = 0;
  double replicated = 0;      // norms, biases that are not split
  double expert_vectors = 0;  // biases of all experts
};
LayerParameters CountLayerParameters(const ModelShape& shape, bool is_moe);

// Elements of all matrices: layers, those of multi-token prediction, embedding
// and logits. Norms, biases and learned positions are not among them (that is how
// the published tables count that tests hold this against).
double CountMatrixParameters(const ModelShape& shape);
// All parameters: norms, biases and learned positions with them, multi-token
// prediction without, as a model of Hugging Face transformers has them.
double CountParameters(const ModelShape& shape);
// What is there beside layers: norms of the embedding and before the logits,
// learned positions, without the matrices of the vocabulary.
double EmbeddingVectors(const ModelShape& shape);
double LogitsVectors(const ModelShape& shape);
// The matrices of the experts that a token passes, and all others.
double CountActiveMatrixParameters(const ModelShape& shape);
// All parameters but those of experts that a token does not pass.
double CountActiveParameters(const ModelShape& shape);

// Throws InputError with `place` first where sizes contradict each other.
void CheckShape(const ModelShape& shape, std::string_view place);

// What a config.json of Hugging Face transformers tells.
struct ModelConfig {
  ModelShape shape = {};
  // A line each: what of the file is not counted, and which keys were not used.
  std::vector<std::string> notes = {};
};

// For the types of model_types.h. Of a model of several parts the text's is read.
// Throws InputError where the type is another (the message names the fields that
// would do), a field is missing or wrong, or a key says that the model has parts
// that are not counted.
ModelConfig ParseModelConfig(std::string_view text, std::string_view file);
// The shape alone.
ModelShape ParseHuggingFaceConfig(std::string_view text, std::string_view file);
ModelShape ReadHuggingFaceConfig(const std::filesystem::path& path);

}  // namespace acplan::costmodel
