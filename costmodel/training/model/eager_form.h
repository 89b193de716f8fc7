#pragma once

#include <cstdint>
#include <string_view>

namespace acplan::costmodel {

enum class NormKind {
  kLayerNorm,  // one kernel: saves its input and two float32 numbers per row
  kRms,        // as in Llama: in float32, then cast, then weighted
  kRmsWide,    // as in Gemma and OLMo 2: weighted in float32, then cast
};

enum class QkNorm {
  kNone,
  kHeads,  // each head separately (Qwen 3)
  kWhole,  // all heads together (OLMo 2)
};

// The tensors that hold queries, keys and values when attention saves them.
enum class QkvLayout {
  kSeparate,  // each has a separate tensor
  // Queries and keys have separate tensors, values are a part of the one product.
  kRotated,
  kWhole,  // all are parts of the one product
};

enum class BlockNorms {
  kBefore,    // attention and feed-forward
  kAfter,     // both (OLMo 2)
  kBoth,      // before and after both (Gemma 2)
  kParallel,  // before both, which read the same residual stream (GPT-NeoX)
};

// The form of a block in the modules of Hugging Face transformers (5.x), as far as the
// tensors that PyTorch's operators save for the backward pass depend on it.
struct ModuleForm {
  NormKind norm = NormKind::kRms;
  BlockNorms norms = BlockNorms::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  QkvLayout qkv = QkvLayout::kSeparate;
  // The result of attention is copied for the next product, as its layout is that of the
  // queries.
  bool copies_attention = false;
  bool has_scores = false;   // attention without a fused kernel
  bool caps_scores = false;  // tanh of scores and logits (Gemma 2)
  // The number of tensors of a feed-forward's width.
  double activation_copies = 4;
  double dropout_masks = 0;  // masks of the hidden size, a byte per element
  bool has_embedding_norm = false;
  bool has_embedding_dropout = false;
  bool has_wide_router = false;  // reads a float32 copy of its input
};

// Returns the form for a configuration's `model_type`; Llama's for an unknown one.
ModuleForm ModuleFormOf(std::string_view type);

}  // namespace acplan::costmodel
