#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// A number of products, `groups`, of (rows x inner) and (inner x columns); none if groups
// is 0.
struct MatrixProduct {
  double rows = 0;
  double columns = 0;
  double inner = 0;
  double groups = 0;
  bool is_low_precision = false;  // runs in the strategy's precision
  // False for products of scores, which have no weights: nothing accumulates in gradients.
  bool has_weights = true;
  bool is_frozen = false;  // the weights are not trained: they have no gradient
  bool has_adapter =
      false;  // of low rank (LoRA), beside weights that are not trained
};

enum class CollectiveKind {
  kNone,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  // An all-to-all of tokens, which may go to several experts of a node.
  kDispatch,
};

enum class GroupKind { kTensor, kContext, kExpert, kExpertTensor };

// A collective. `bytes` are those of the whole tensor (for an all-to-all or dispatch: those
// that a rank sends).
struct Collective {
  CollectiveKind kind = CollectiveKind::kNone;
  GroupKind group = GroupKind::kTensor;
  double bytes = 0;
};

// A step of a layer on one rank for one microbatch, with its backward.
struct LayerOperation {
  std::string_view name = {};
  LayerPart part = LayerPart::kNorm;
  // The share of the layers that run it, below 1 in a hybrid. Its bytes are means over
  // layers; its products, traffic, messages and launches are those of a layer that runs it.
  double share = 1;
  MatrixProduct product = {};
  double attention_flops = 0;  // of a fused kernel, forward
  double forward_bytes = 0;    // the traffic of elementwise work
  double backward_bytes = 0;
  Collective forward_sent = {};
  Collective backward_sent = {};
  double forward_launches = 0;  // the operators that the host launches
  double backward_launches = 0;
  double saved_bytes = 0;  // the bytes that the backward pass reads
  // The part of saved_bytes that the operation makes; it reads the rest.
  double made_bytes = 0;
};

// The mixer of tokens whose operations count: those of all layers by their shares, or those
// of one kind.
enum class MixerChoice { kMean, kAttention, kLinear };

// The differences between layers of a model.
struct LayerForm {
  bool is_moe = false;
  bool is_windowed = false;  // attends to a window
  MixerChoice mixer = MixerChoice::kMean;
};

// The bytes of a weight of four bits (NF4): blocks of 64 have a scale of 8 bits, and 256
// scales one of 32 (double quantization).
constexpr double kFourBitBytes = .5 + 1.0 / 64 + 4.0 / (64 * 256);

// Returns the expected share of `copies` of a token that go to different ones of `places`, if
// each place is as likely.
double DistinctShare(double places, double copies);

// Returns the operations of a layer, in order. `strategy.microbatch` must be set.
std::vector<LayerOperation> LayerOperations(const ModelShape& shape,
                                            const TrainingStrategy& strategy,
                                            LayerForm form);

// Returns the operations of the embedding of tokens, or of the final norm, the logits and
// the loss.
std::vector<LayerOperation> EmbeddingOperations(
    const ModelShape& shape, const TrainingStrategy& strategy);
std::vector<LayerOperation> LogitsOperations(const ModelShape& shape,
                                             const TrainingStrategy& strategy);

}  // namespace acplan::costmodel
