#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/model/eager_form.h"
#include "costmodel/training/model/tower.h"

namespace acplan::costmodel {

constexpr int64_t kMostLayers = 100000;

// The vectors of a norm.
enum class NormWeights { kNone = 0, kScale = 1, kScaleAndBias = 2 };

// A mixer of tokens whose work is linear in the sequence: a state space (Mamba), a delta
// rule, linear attention, a short convolution.
struct LinearMixer {
  int64_t layers = 0;    // the number of layers that have one
  int64_t inputs = 0;    // columns of the projections from the hidden size
  int64_t inner = 0;     // rows of the projection back to it
  int64_t matrices = 0;  // elements of matrices between these
  int64_t vectors = 0;   // elements of convolution, norm, decay and biases
  int64_t channels = 0;  // that the convolution reads; 0 without one
  int64_t state = 0;     // elements of the state of a sequence
  // The tokens that are computed together, and the products of one with each of the others;
  // 0 if the state is computed token by token.
  int64_t chunk = 0;
  int64_t chunk_products = 0;
};

// The indexer of sparse attention: each query attends to the `top_k` keys of the highest
// scores.
struct AttentionIndexer {
  int64_t layers =
      0;  // that have one; others attend to the keys of an earlier one
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t top_k = 0;
};

// The sizes of a decoder-only transformer, without weights. Sizes are elements, counts are
// counts; 0 means "has none" unless said otherwise.
struct ModelShape {
  int64_t layers = 0;  // without those of multi-token prediction
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;     // the size of queries and keys
  int64_t feedforward = 0;  // the width of a dense feed-forward
  int64_t vocabulary = 0;
  bool is_gated = false;  // a feed-forward has three matrices, not two
  // The biases of queries, keys and values, of attention's output, of the dense
  // feed-forward, of router and experts, and of the logits.
  bool has_query_bias = false;
  bool has_output_bias = false;
  bool has_feedforward_bias = false;
  bool has_expert_bias = false;
  bool has_logits_bias = false;
  NormWeights norm_weights = NormWeights::kScale;
  int64_t block_norms = 2;  // norms of the hidden size in each layer
  bool has_rope = false;
  bool is_tied = false;  // logits use the embedding's weight
  int64_t learned_positions = 0;
  // Columns of the product that gates the result of attention.
  int64_t attention_gate = 0;
  bool has_gate_bias = false;  // together with that of the queries
  AttentionIndexer indexer = {};
  LinearMixer linear = {};
  // In a hybrid, the layers that have no attention; and the layers without experts that
  // have no feed-forward either.
  int64_t layers_without_attention = 0;
  int64_t layers_without_feedforward = 0;
  // A layer is one of attention, linear mixer and feed-forward, with one norm (Nemotron-H).
  bool has_single_blocks = false;
  // Elements of other vectors, in each layer, and in each layer with experts.
  int64_t layer_vectors = 0;
  int64_t moe_vectors = 0;

  // The window of attention. 0 is full attention; otherwise each query sees this many keys,
  // in all layers except `full_layers`. With chunks, a query sees the keys of its own
  // chunk, which has this size.
  int64_t sliding_window = 0;
  int64_t full_layers = 0;
  bool has_chunks = false;

  // Mixture of experts.
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert_feedforward = 0;
  int64_t shared_feedforward = 0;  // the sum over all shared experts
  int64_t dense_layers = 0;        // layers without experts
  // Indexed by layer: whether it has experts. If empty, all layers except the first
  // `dense_layers` have experts.
  std::vector<bool> moe_pattern = {};
  int64_t mtp_layers = 0;
  // The groups of experts that a token may go to; 0 for all.
  int64_t routed_groups = 0;
  bool is_clamped = false;  // the activation is clamped by separate kernels

  // Multi-head latent attention.
  int64_t q_rank = 0;  // 0 if queries have no low rank
  int64_t kv_rank = 0;
  int64_t qk_nope = 0;
  int64_t qk_rope = 0;
  // The size of a head's values; head_dim is used if there is no latent attention.
  int64_t v_dim = 0;

  // The dropout shares of the configuration.
  double hidden_dropout = 0;
  double attention_dropout = 0;
  double embedding_dropout = 0;

  ModuleForm form = {};  // the form of its modules in transformers

  // Each vector attends to all others, not only to earlier ones.
  bool is_bidirectional = false;
  // Layers also attend to the result of an encoder, which is the tower.
  bool has_cross_attention = false;
  bool has_final_norm = true;  // before the logits
  // The stacks that images pass before the text model, which the other sizes describe.
  std::vector<Tower> towers = {};

  bool IsMoe() const { return experts > 0; }
  bool IsMoeLayer(int64_t layer) const {
    if (!IsMoe()) return false;
    const auto i = static_cast<size_t>(layer);
    return i < moe_pattern.size() ? moe_pattern[i] : layer >= dense_layers;
  }
  // Returns the number of layers with experts, without those of multi-token prediction.
  int64_t MoeLayers() const { return IsMoe() ? layers - dense_layers : 0; }
  int64_t AttentionLayers() const { return layers - layers_without_attention; }
  // Returns the share of the layers with attention that attend to everything.
  double FullShare() const {
    return sliding_window == 0 ? 1
                               : static_cast<double>(full_layers) /
                                     static_cast<double>(AttentionLayers());
  }
  bool IsHybrid() const { return linear.layers > 0; }
  // Returns whether the operations of all layers are the same, but for the width of windows
  // and experts, so that a layer can be planned.
  bool HasUniformLayers() const { return !IsHybrid() && indexer.layers == 0; }
  double AttentionShare() const { return ShareOf(AttentionLayers()); }
  double LinearShare() const { return ShareOf(linear.layers); }
  double IndexerShare() const { return ShareOf(indexer.layers); }
  // Returns the share of the layers without experts that have a feed-forward.
  double DenseShare() const {
    const int64_t dense = layers - MoeLayers();
    return dense == 0 ? 1
                      : 1 - static_cast<double>(layers_without_feedforward) /
                                static_cast<double>(dense);
  }
  void SetBiases(bool has) {
    has_query_bias = has_output_bias = has_feedforward_bias = has;
  }
  bool HasEncoder() const { return has_cross_attention; }
  bool IsLatent() const { return kv_rank > 0; }
  // Returns the dimension of a head's values.
  int64_t ValueDim() const { return IsLatent() ? v_dim : head_dim; }
  int64_t QueryDim() const { return IsLatent() ? qk_nope + qk_rope : head_dim; }
  // Returns the number of matrices of a feed-forward.
  int64_t FeedforwardMatrices() const { return is_gated ? 3 : 2; }
  double ShareOf(int64_t count) const {
    return static_cast<double>(count) / static_cast<double>(layers);
  }
};

// Elements of the weights of one layer, grouped by the way in which they are sharded. In a
// hybrid they are the mean over layers.
struct LayerParameters {
  // Matrices of attention and linear mixer, split by tensor parallelism.
  double attention = 0;
  double dense = 0;    // the feed-forward and shared experts
  double experts = 0;  // all experts
  double router = 0;
  double replicated = 0;      // norms, biases that are not split
  double expert_vectors = 0;  // biases of all experts
};
LayerParameters CountLayerParameters(const ModelShape& shape, bool is_moe);

// Returns the elements of all matrices: layers, including those of multi-token prediction,
// embedding and logits. Norms, biases and learned positions are not included, as in the
// published tables that tests compare with.
double CountMatrixParameters(const ModelShape& shape);
// Returns all parameters, including towers, norms, biases and learned positions, but without
// multi-token prediction, as in a model of Hugging Face transformers.
double CountParameters(const ModelShape& shape);
// Returns the parameters outside of layers, without the matrices of the vocabulary: norm of
// the embedding and learned positions, or norm before the logits and their bias.
double EmbeddingVectors(const ModelShape& shape);
double LogitsVectors(const ModelShape& shape);
// Returns the elements of the matrices of the experts that a token passes, and of all other
// matrices.
double CountActiveMatrixParameters(const ModelShape& shape);
// Returns all parameters except those of experts that a token does not pass.
double CountActiveParameters(const ModelShape& shape);

// Throws InputError that begins with `place` if sizes contradict each other.
void CheckShape(const ModelShape& shape, std::string_view place);

// The content of a config.json of Hugging Face transformers.
struct ModelConfig {
  ModelShape shape = {};
  // One line for each part of the file that is not counted, and one for the keys that were
  // not used.
  std::vector<std::string> notes = {};
};

// Parses a configuration of a type in model_types.h. If the model has several parts, the
// text's part is read. Throws InputError if the type is another one (the message names the
// fields that would do), if a field is missing or wrong, or if a key shows that the model
// has parts that are not counted.
ModelConfig ParseModelConfig(std::string_view text, std::string_view file);
// Returns only the shape.
ModelShape ParseHuggingFaceConfig(std::string_view text, std::string_view file);
ModelShape ReadHuggingFaceConfig(const std::filesystem::path& path);

}  // namespace acplan::costmodel
