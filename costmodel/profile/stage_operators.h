#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/layers/layer.h"
#include "costmodel/llm/block_costs.h"

namespace acplan::costmodel {

// The layers of a stage as operators of a profile (stage_profile.h).

// Bytes as a profile holds them. Throws InputError for more than 2^53.
int64_t ProfileBytes(double bytes);

struct PassMs {
  double forward = 0;
  double backward = 0;
};

// A layer of a block, for a microbatch.
struct LayerCosts {
  Layer layer;
  double made = 0;         // bytes that saving it takes
  double kept_inside = 0;  // of them, what autograd keeps besides the result
  double kept_result = 0;  // what autograd keeps of the result
  bool is_view_like = false;
  bool is_random = false;
  bool is_in_place = false;  // on the result of the one before
  PassMs base = {};
  PassMs edge = {};
};

// Layers [begin, end) of a block.
struct LayerRange {
  size_t begin = 0;
  size_t end = 0;
};

struct BlockLayout {
  LayerRange core;
  LayerRange attention;
  LayerRange mlp;
};

enum class HeldGradients : uint8_t { kNone, kShard, kFull };

// The parts of a block that the first tier of memory holds at the peak.
struct StageBlock {
  bool has_weights = true;
  bool has_optimizer = true;
  HeldGradients gradients = HeldGradients::kFull;
  double microbatches = 1;  // activations of as many
  double discardable = 1;   // of those, what units can do without
  bool is_edge = false;
};

// An operator of the stage, in its block.
struct StageOperator {
  size_t layer = 0;  // of a block
  int64_t made = 0;
  int64_t kept_inside = 0;
  int64_t kept_result = 0;
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  PassMs ms;
  double microbatches = 0;
};

// All operators of a stage, block after block.
struct StageOperators {
  BlockCosts costs;  // of a block
  BlockLayout layout;
  std::vector<StageBlock> blocks;
  std::vector<LayerCosts> layers;  // of a block
  std::vector<StageOperator> operators;
  double bytes_per_element = 0;
  double input_bytes = 0;  // of a block, which keeps its input
  // Bytes of the whole stage.
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
};

// `execution` recomputes nothing.
StageOperators ListStageOperators(const Model& model, const System& system,
                                  const Execution& execution,
                                  const Corrections& corrections,
                                  int64_t stage);

}  // namespace acplan::costmodel
