#include "costmodel/training/model/eager_form.h"

namespace acplan::costmodel {
namespace {

ModuleForm OfLayerNorm() { return {.norm = NormKind::kLayerNorm}; }

ModuleForm OfGpt2() {
  ModuleForm form = OfLayerNorm();
  form.qkv = QkvLayout::kWhole;
  // The input, tanh, 1 + tanh, half the input, and their product.
  form.activation_copies = 5;
  form.dropout_masks = 2;
  form.has_embedding_dropout = true;
  return form;
}

ModuleForm OfGptNeox() {
  ModuleForm form = OfLayerNorm();
  form.norms = BlockNorms::kParallel;
  form.qkv = QkvLayout::kRotated;
  form.copies_attention = true;
  form.activation_copies = 2;
  return form;
}

ModuleForm OfBloom() {
  ModuleForm form = OfLayerNorm();
  form.has_scores = true;
  form.activation_copies = 2;
  form.has_embedding_norm = true;
  return form;
}

}  // namespace

ModuleForm ModuleFormOf(std::string_view type) {
  if (type == "gpt2") return OfGpt2();
  if (type == "gpt_neox") return OfGptNeox();
  if (type == "bloom") return OfBloom();
  ModuleForm form;
  if (type == "phi3") {
    form.qkv = QkvLayout::kRotated;
    form.copies_attention = true;
  }
  if (type == "olmo2") {
    form.norm = NormKind::kRmsWide;
    form.norms = BlockNorms::kAfter;
  }
  if (type == "gemma2") {
    form.norm = NormKind::kRmsWide;
    form.norms = BlockNorms::kBoth;
    form.has_scores = true;
    form.caps_scores = true;
  }
  if (type.starts_with("gemma3")) {
    form.norm = NormKind::kRmsWide;
    form.norms = BlockNorms::kBoth;
  }
  if (type.starts_with("deepseek")) {
    form.copies_attention = true;
    form.has_wide_router = true;
  }
  return form;
}

}  // namespace acplan::costmodel
