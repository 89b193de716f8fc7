#pragma once

#include <cstdint>
#include <string_view>

namespace acplan::costmodel {

enum class NormKind {
  kLayerNorm,  // one kernel: saves its input and two float32 numbers a row
  kRms,        // as Llama: in float32, then cast, then weighted
  kRmsWide,    // as Gemma and OLMo 2: weighted in float32, then cast
};

enum class QkNorm {
  kNone,
  kHeads,  // each head by itself (Qwen 3)
  kWhole,  // all heads together (OLMo 2)
};

// Where queries, keys and values lie when attention saves them.
enum class QkvLayout {
  kSeparate,  // each in a tensor of its own
  kRotated,   // queries and keys are, values are a part of the one product
  kWhole,     // all are parts of the one product
};

enum class BlockNorms {
  kBefore,    // attention and feed-forward
  kAfter,     // both (OLMo 2)
  kBoth,      // before and after both (Gemma 2)
  kParallel,  // before both, which read the same residual stream (GPT-NeoX)
};

// How the modules of Hugging Face transformers (5.x) write a block, as far as what
// PyTorch's operators save for the backward pass depends on it.
struct ModuleForm {
  NormKind norm = NormKind::kRms;
  BlockNorms norms = BlockNorms::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  QkvLayout qkv = QkvLayout::kSeparate;
  // The result of attention is copied for the product after it, as its layout is
  // that of the queries.
  bool copies_attention = false;
  bool has_scores = false;       // attention without a fused kernel
  bool caps_scores = false;      // tanh of scores and logits (Gemma 2)
  double activation_copies = 4;  // tensors of a feed-forward's width
  double dropout_masks = 0;      // of the hidden size, a byte an element
  bool has_embedding_norm = false;
  bool has_embedding_dropout = false;
  bool has_wide_router = false;  // reads a float32 copy of its input
};

// By `model_type` of a configuration; Llama's where it is another.
ModuleForm ModuleFormOf(std::string_view type);

}  // namespace acplan::costmodel
