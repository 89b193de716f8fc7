#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "costmodel/training/eager_form.h"

namespace acplan::costmodel {

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
  bool is_gated = false;        // a feed-forward has three matrices, not two
  bool has_biases = false;      // of its linear layers
  bool has_layer_norm = false;  // LayerNorm (weight and bias), else RMSNorm
  bool has_rope = false;
  bool is_tied = false;         // logits are made with the embedding's weight
  bool has_query_bias = false;  // of queries, keys and values alone (Qwen 2)
  int64_t learned_positions = 0;

  // Of attention: 0 is full; else each query sees so many keys in all layers but
  // every `full_every`-th (0: in all).
  int64_t sliding_window = 0;
  int64_t full_every = 0;

  // Mixture of experts.
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert_feedforward = 0;
  int64_t shared_feedforward = 0;  // of all shared experts together
  int64_t dense_layers = 0;        // the first layers, which are not MoE
  int64_t mtp_layers = 0;
  int64_t routed_groups = 0;  // of experts that a token may go to; 0: all
  bool is_clamped = false;  // the activation is limited, by kernels of its own

  // Multi-head latent attention.
  int64_t q_rank = 0;  // 0: queries have no low rank
  int64_t kv_rank = 0;
  int64_t qk_nope = 0;
  int64_t qk_rope = 0;
  int64_t v_dim = 0;  // of a head; head_dim where there is no latent attention

  ModuleForm form = {};  // how transformers writes it

  bool IsMoe() const { return experts > 0; }
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
  double replicated = 0;  // norms, biases that are not split
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

// Throws InputError with `place` first where sizes contradict each other.
void CheckShape(const ModelShape& shape, std::string_view place);

// The shape that a config.json of Hugging Face transformers tells, for the types
// in kHuggingFaceTypes (hugging_face.cc). Throws InputError where the type is
// another (the message names the fields that would do) or a field is missing or
// wrong.
ModelShape ParseHuggingFaceConfig(std::string_view text, std::string_view file);
ModelShape ReadHuggingFaceConfig(const std::filesystem::path& path);

}  // namespace acplan::costmodel
