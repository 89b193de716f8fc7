// A layer as the operations that training frameworks run for it. Sizes are those of one
// rank and one microbatch: `rows` are its tokens, `split_rows` the tokens of a rank under
// sequence parallelism, where tensor parallelism does not split. Traffic counts each
// element once that a kernel reads or writes, for kernels that are fused as in Transformer
// Engine.
#include "costmodel/training/layer/layer_operations.h"

#include <cmath>
#include <utility>

#include "costmodel/training/layer/layer_builder.h"

namespace acplan::costmodel {
namespace {

// The kernels of a clamped activation: halves, limits, sigmoid, products and its weight by
// the router, in float32, are a kernel each.
constexpr double kClampedPasses = 8;

// The host takes as long for a collective as for this many kernels: it allocates, waits for
// streams and handles, and transposes.
constexpr double kCollectiveLaunches = 4;

// The operators of a part of a layer that the host launches.
struct Launches {
  double forward = 0;
  double backward = 0;
};

// Operators beside the products of the router and of experts, as traces of Megatron-Core's
// layer count them (docs/measured/expert_launches.csv): the choice of experts and its
// auxiliary loss.
constexpr Launches kChoiceLaunches = {24, 15};

// Returns the operators of dispatching tokens, or of combining them. An all-to-all counts
// tokens, permutes them, and sends them and their weights; DeepEP and HybridEP have fused
// kernels for most of that.
Launches ExchangeLaunches(const TrainingStrategy& strategy) {
  if (strategy.expert == 1) return {7, 5};
  if (strategy.dedupes_tokens) return {5, 5};
  return {12, 7};
}

// Returns the number of kernels that cast a tensor: current scaling finds the greatest
// element, casts and transposes; other precisions need one kernel.
double CastLaunches(ProductPrecision precision) {
  switch (precision) {
    case ProductPrecision::kBf16:
      return 0;
    case ProductPrecision::kFp8Current:
      return 3;
    default:
      return 1;
  }
}

}  // namespace

void LayerBuilder::AddNorm() {
  const double elements = split_rows_ * hidden_;
  operations_.push_back({.name = "norm",
                         .part = LayerPart::kNorm,
                         .forward_bytes = 2 * kWidth * elements,
                         .backward_bytes = 4 * kWidth * elements,
                         .forward_launches = 1,
                         .backward_launches = 2,
                         .saved_bytes = kWidth * elements});
}

void LayerBuilder::AddResidual() {
  const double elements = split_rows_ * hidden_;
  const double mask = strategy_.drops_hidden ? elements : 0;
  operations_.push_back(
      {.name = "residual",
       .part = LayerPart::kResidual,
       .forward_bytes = 3 * kWidth * elements + mask,
       .backward_bytes =
           (strategy_.drops_hidden ? 2 : 0) * kWidth * elements + mask,
       .forward_launches = 1,
       .backward_launches = 1,
       .saved_bytes = mask,
       .made_bytes = mask});
}

void LayerBuilder::AddGather(LayerPart part, double rows) {
  if (strategy_.tensor == 1) return;
  const double bytes = kWidth * rows * hidden_;
  LayerOperation operation{.name = "gather", .part = part};
  if (strategy_.sequence_parallel) {
    operation.forward_sent = {CollectiveKind::kAllGather, GroupKind::kTensor,
                              bytes};
    // The gradient is scattered, and the input is gathered again for the gradient of the
    // weight.
    operation.backward_sent = {CollectiveKind::kAllReduce, GroupKind::kTensor,
                               bytes};
    operation.forward_launches = kCollectiveLaunches;
    operation.backward_launches = 2 * kCollectiveLaunches;
  } else {
    operation.backward_sent = {CollectiveKind::kAllReduce, GroupKind::kTensor,
                               bytes};
    operation.backward_launches = kCollectiveLaunches;
  }
  operations_.push_back(operation);
}

void LayerBuilder::AddScatter(LayerPart part) {
  if (strategy_.tensor == 1) return;
  const double bytes = kWidth * rows_ * hidden_;
  LayerOperation operation{.name = "scatter", .part = part};
  operation.forward_sent = {strategy_.sequence_parallel
                                ? CollectiveKind::kReduceScatter
                                : CollectiveKind::kAllReduce,
                            GroupKind::kTensor, bytes};
  operation.forward_launches = kCollectiveLaunches;
  if (strategy_.sequence_parallel) {
    operation.backward_sent = {CollectiveKind::kAllGather, GroupKind::kTensor,
                               bytes};
    operation.backward_launches = kCollectiveLaunches;
  }
  operations_.push_back(operation);
}

bool LayerBuilder::HasBias(std::string_view name, LayerPart part) const {
  switch (part) {
    case LayerPart::kAttention:
      return name == "output" ? shape_.has_output_bias : shape_.has_query_bias;
    case LayerPart::kFeedforward:
      return name == "logits" ? shape_.has_logits_bias
                              : shape_.has_feedforward_bias;
    default:
      return part == LayerPart::kMoe && shape_.has_expert_bias;
  }
}

void LayerBuilder::AddProduct(std::string_view name, LayerPart part,
                              MatrixProduct product, double saved_bytes) {
  const double casts =
      product.is_low_precision ? CastLaunches(strategy_.precision) : 0;
  const bool is_of_layer = name != "router" && name != "logits";
  product.is_frozen = product.has_weights && strategy_.lora_rank > 0;
  product.has_adapter =
      product.is_frozen && is_of_layer &&
      (!strategy_.lora_attention_only || part == LayerPart::kAttention ||
       part == LayerPart::kMlaUp);
  const double biases =
      product.has_weights && !product.is_frozen && HasBias(name, part);
  // Each expert's tokens are cast and multiplied by separate launches.
  const double groups =
      product.has_weights && !strategy_.fuses_experts ? product.groups : 1;
  const double products_backward = product.is_frozen ? 1 : 2;
  LayerOperation operation{
      .name = name,
      .part = part,
      .product = product,
      .forward_launches = (1 + casts) * groups + 2 * casts,
      .backward_launches =
          (products_backward + casts) * groups + 2 * casts + biases,
      // Only the gradient of a weight needs the input, be it that of the adapter's.
      .saved_bytes =
          product.is_frozen && !product.has_adapter ? 0 : saved_bytes};
  if (strategy_.has_four_bit_base && product.is_frozen && is_of_layer) {
    // Both passes write the weights in 16 bits first.
    const double weights = product.columns * product.inner * product.groups;
    operation.forward_bytes = (kFourBitBytes + kWidth) * weights;
    operation.backward_bytes = operation.forward_bytes;
    operation.forward_launches += groups;
    operation.backward_launches += groups;
  }
  operations_.push_back(product.has_adapter ? WithAdapter(operation)
                                            : operation);
}

// Adds the adapter to its product. Its two products take as long as their traffic: the rank
// is far below what a multiprocessor needs. Their result is scaled, and added to that of the
// frozen weights, by a kernel each. The result between them is kept with the input; it is left
// out where attention keeps that, which is .02% of a layer.
LayerOperation LayerBuilder::WithAdapter(LayerOperation operation) const {
  const MatrixProduct& product = operation.product;
  const double rows = product.rows * product.groups;
  const double inputs = rows * product.inner;
  const double results = rows * product.columns;
  const double inner = rows * static_cast<double>(strategy_.lora_rank);
  const double groups = strategy_.fuses_experts ? 1 : product.groups;
  operation.forward_bytes += kWidth * (inputs + 2 * inner + 6 * results);
  operation.backward_bytes += kWidth * (5 * inputs + 6 * inner + 4 * results);
  operation.forward_launches += 4 * groups;
  operation.backward_launches += 6 * groups;
  if (operation.saved_bytes > 0) operation.saved_bytes += kWidth * inner;
  return operation;
}

void LayerBuilder::AddElementwise(std::string_view name, LayerPart part,
                                  double elements, double saved_bytes) {
  operations_.push_back({.name = name,
                         .part = part,
                         .forward_bytes = kWidth * elements,
                         .backward_bytes = 1.5 * kWidth * elements,
                         .forward_launches = 1,
                         .backward_launches = 1,
                         .saved_bytes = saved_bytes});
}

void LayerBuilder::AddFeedforward(LayerPart part, LayerPart activation_part,
                                  double width) {
  const double split = width / tensor_;
  const double inputs = shape_.is_gated ? 2 : 1;
  AddGather(part);
  AddProduct("up", part,
             {.rows = rows_,
              .columns = inputs * split,
              .inner = hidden_,
              .groups = 1,
              .is_low_precision = true},
             kWidth * split_rows_ * hidden_);
  AddElementwise("activation", activation_part, (inputs + 1) * rows_ * split,
                 kWidth * inputs * rows_ * split);
  AddProduct("down", part,
             {.rows = rows_,
              .columns = hidden_,
              .inner = split,
              .groups = 1,
              .is_low_precision = true},
             kWidth * rows_ * split);
  AddScatter(part);
}

// Returns the traffic of permuting tokens before or after an exchange, relative to the
// copies that experts compute. A token is read and its copies are written, or the opposite.
// DeepEP and HybridEP permute the tokens that arrived, of which a rank has one each. Others
// permute before the exchange, and sort what arrived by experts.
double LayerBuilder::CopiesPermuted() const {
  const double top_k = static_cast<double>(shape_.top_k);
  if (strategy_.dedupes_tokens) {
    return 1 + DistinctShare(static_cast<double>(strategy_.expert), top_k);
  }
  const bool has_several = shape_.experts > strategy_.expert;
  return 1 + 1 / top_k + (has_several ? 2 : 0);
}

// Adds the experts. Each rank sends its tokens to the ranks of their experts and receives
// as many (routing is balanced, as in all measured runs).
void LayerBuilder::AddExperts() {
  const double experts = static_cast<double>(shape_.experts);
  const double local = experts / static_cast<double>(strategy_.expert);
  const double sharing = static_cast<double>(strategy_.expert_tensor);
  // Ranks that share experts compute each other's tokens, too.
  const double tokens =
      sharing * split_rows_ * static_cast<double>(shape_.top_k);
  const double width = static_cast<double>(shape_.expert_feedforward) / sharing;
  const double inputs = shape_.is_gated ? 2 : 1;
  const double bytes = kWidth * tokens * hidden_;
  AddProduct(
      "router", LayerPart::kMoe,
      {.rows = split_rows_, .columns = experts, .inner = hidden_, .groups = 1},
      kWidth * split_rows_ * hidden_);
  operations_.push_back({.name = "top experts",
                         .part = LayerPart::kMoe,
                         .forward_bytes = 12 * split_rows_ * experts,
                         .backward_bytes = 12 * split_rows_ * experts,
                         .forward_launches = kChoiceLaunches.forward,
                         .backward_launches = kChoiceLaunches.backward,
                         .saved_bytes = 8 * split_rows_ * experts,
                         .made_bytes = 8 * split_rows_ * experts});
  const double moved_bytes = bytes * CopiesPermuted();
  const Launches launches = ExchangeLaunches(strategy_);
  const auto exchange = [&](std::string_view name) {
    const Collective collective{CollectiveKind::kDispatch, GroupKind::kExpert,
                                bytes / sharing};
    operations_.push_back({.name = name,
                           .part = LayerPart::kMoe,
                           .forward_bytes = moved_bytes,
                           .backward_bytes = moved_bytes,
                           .forward_sent = collective,
                           .backward_sent = collective,
                           .forward_launches = launches.forward,
                           .backward_launches = launches.backward});
  };
  exchange("dispatch");
  if (sharing > 1) AddExpertSharing(bytes);
  const auto product = [&](double columns, double inner) {
    return MatrixProduct{.rows = tokens / local,
                         .columns = columns,
                         .inner = inner,
                         .groups = local,
                         .is_low_precision = true};
  };
  AddProduct("experts up", LayerPart::kMoe, product(inputs * width, hidden_),
             bytes);
  // The router's weights multiply the activation: within its kernel if it is gated,
  // otherwise one more tensor is kept.
  const double kept_tensors = shape_.is_gated ? inputs : inputs + 1;
  AddElementwise(
      "experts activation", LayerPart::kMoeActivation,
      (shape_.is_clamped ? kClampedPasses : 1) * (inputs + 1) * tokens * width,
      kWidth * kept_tensors * tokens * width);
  AddProduct("experts down", LayerPart::kMoe, product(hidden_, width),
             kWidth * tokens * width);
  if (sharing > 1) AddExpertSharing(bytes);
  exchange("combine");
}

// Adds the gathering of tokens before experts or their scattering after experts; the
// backward pass does the opposite.
void LayerBuilder::AddExpertSharing(double bytes) {
  const Collective collective{CollectiveKind::kAllGather,
                              GroupKind::kExpertTensor, bytes};
  operations_.push_back({.name = "share experts",
                         .part = LayerPart::kMoe,
                         .forward_sent = collective,
                         .backward_sent = collective,
                         .forward_launches = kCollectiveLaunches,
                         .backward_launches = kCollectiveLaunches});
}

void LayerBuilder::AddEmbedding() {
  const double elements = rows_ * hidden_;
  operations_.push_back({.name = "embedding",
                         .part = LayerPart::kNorm,
                         .forward_bytes = 2 * kWidth * elements,
                         .backward_bytes = 4 * kWidth * elements,
                         .forward_launches = 3,
                         .backward_launches = 3});
  AddScatter(LayerPart::kNorm);
}

void LayerBuilder::AddLogits() {
  if (shape_.has_final_norm) AddNorm();
  AddGather(LayerPart::kFeedforward);
  const double columns = static_cast<double>(shape_.vocabulary) / tensor_;
  AddProduct("logits", LayerPart::kFeedforward,
             {.rows = rows_, .columns = columns, .inner = hidden_, .groups = 1},
             kWidth * split_rows_ * hidden_);
  // In float32: the logits are converted, their greatest is found, exponentials are summed.
  operations_.push_back({.name = "loss",
                         .part = LayerPart::kNorm,
                         .forward_bytes = 18 * rows_ * columns,
                         .backward_bytes = 10 * rows_ * columns,
                         .forward_launches = 10,
                         .backward_launches = 6,
                         .saved_bytes = 4 * rows_ * columns});
}

double DistinctShare(double places, double copies) {
  return places * (1 - std::pow(1 - 1 / places, copies)) / copies;
}

std::vector<LayerOperation> LayerOperations(const ModelShape& shape,
                                            const TrainingStrategy& strategy,
                                            LayerForm form) {
  LayerBuilder builder(shape, strategy);
  builder.AddNorm();
  const auto share_of = [&](MixerChoice mixer, double share) {
    return form.mixer == MixerChoice::kMean ? share
           : form.mixer == mixer            ? 1
                                            : 0;
  };
  builder.AddShare(share_of(MixerChoice::kAttention, shape.AttentionShare()),
                   [&] { builder.AddAttention(form.is_windowed); });
  if (shape.IsHybrid()) {
    builder.AddShare(share_of(MixerChoice::kLinear, shape.LinearShare()),
                     [&] { builder.AddLinearMixer(); });
  }
  builder.AddResidual();
  if (shape.has_cross_attention) {
    builder.AddNorm();
    builder.AddCrossAttention();
    builder.AddResidual();
  }
  if (!shape.has_single_blocks) builder.AddNorm();
  if (form.is_moe) {
    builder.AddExperts();
    if (shape.shared_feedforward > 0) {
      builder.AddFeedforward(LayerPart::kFeedforward, LayerPart::kActivation,
                             static_cast<double>(shape.shared_feedforward));
    }
  } else {
    builder.AddShare(shape.DenseShare(), [&] {
      builder.AddFeedforward(LayerPart::kFeedforward, LayerPart::kActivation,
                             static_cast<double>(shape.feedforward));
    });
  }
  if (!shape.has_single_blocks) builder.AddResidual();
  return builder.Take();
}

std::vector<LayerOperation> EmbeddingOperations(
    const ModelShape& shape, const TrainingStrategy& strategy) {
  LayerBuilder builder(shape, strategy);
  builder.AddEmbedding();
  return builder.Take();
}

std::vector<LayerOperation> LogitsOperations(const ModelShape& shape,
                                             const TrainingStrategy& strategy) {
  LayerBuilder builder(shape, strategy);
  builder.AddLogits();
  return builder.Take();
}

}  // namespace acplan::costmodel
