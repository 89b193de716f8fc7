#pragma once

#include <cstdint>
#include <string_view>

#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// The origin of the vectors that are added to patches.
enum class PositionRule {
  kNone,   // rotations alone
  kGrid,   // one for each patch of an image
  kCount,  // num_position_embeddings
  kSides,  // pos_emb_height x pos_emb_width
};

// The implementation of a tower in transformers, as far as its configuration does not
// describe it.
struct TowerType {
  std::string_view name = {};  // its own model_type
  // The sizes that transformers uses if a configuration does not give them, as JSON.
  std::string_view defaults = {};
  bool is_gated = false;
  NormWeights norm_weights = NormWeights::kScaleAndBias;
  bool has_biases = true;  // of queries, output and feed-forward
  bool has_rope = false;
  bool has_patch_bias = true;
  bool has_class = false;  // one more vector beside an image's patches
  PositionRule positions = PositionRule::kGrid;
  int64_t outer_norms = 0;   // norms of the hidden size outside of layers
  int64_t layer_scales = 0;  // vectors of a layer that scale its results
  // True if image_size is the size of images, and not the largest one.
  bool has_fixed_size = true;
};

// The way from the vectors of a tower to those of the text model.
enum class ProjectorRule {
  kMerger,    // a norm and two products of merged patches (Qwen)
  kAverage,   // patches are averaged, one product (Gemma 3)
  kOne,       // one product (PaliGemma)
  kTwo,       // two products (LLaVA)
  kShuffled,  // one product of merged patches (Idefics 3)
  kMergedTwo,  // a norm, one product that merges patches, two products (Mistral 3)
  kNormTwo,  // a norm and two products of merged patches (InternVL)
  kAdapter,  // two products of merged patches in the tower, and one (Llama 4)
};

// A model of text and images.
struct TowerOwner {
  std::string_view name = {};  // its model_type
  std::string_view tower =
      {};  // that of its tower, if the tower's own says nothing
  ProjectorRule projector = ProjectorRule::kOne;
  std::string_view defaults = {};  // as for towers
  bool has_newline = false;        // a vector that ends rows of patches
  // The text's part, and not the whole, says whether logits use the embedding's weight.
  bool has_tied_text = false;
};

// Returns null if there is none with this name. A tower may also have its owner's name.
const TowerType* FindTowerType(std::string_view name);
const TowerOwner* FindTowerOwner(std::string_view name);

}  // namespace acplan::costmodel
