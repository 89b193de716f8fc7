// The operations that mix tokens: attention, its indexer and gate, and linear mixers.
#include <algorithm>

#include "costmodel/training/layer/layer_builder.h"

namespace acplan::costmodel {
namespace {

// Returns the product of rows with a weight.
MatrixProduct ProductOfRows(double rows, double columns, double inner) {
  return {.rows = rows,
          .columns = columns,
          .inner = inner,
          .groups = 1,
          .is_low_precision = true};
}

}  // namespace

void LayerBuilder::AddProjections() {
  const double heads = static_cast<double>(shape_.heads);
  const double kv_heads =
      std::max(static_cast<double>(shape_.kv_heads), tensor_);
  const double dim = static_cast<double>(shape_.head_dim);
  AddProduct("query, key, value", LayerPart::kAttention,
             {.rows = rows_,
              .columns = ((heads + 2 * kv_heads) * dim +
                          static_cast<double>(shape_.attention_gate)) /
                         tensor_,
              .inner = hidden_,
              .groups = 1,
              .is_low_precision = true},
             kWidth * split_rows_ * hidden_);
  if (shape_.has_rope) {
    AddElementwise("rotation", LayerPart::kAttention,
                   2 * rows_ * (heads + kv_heads) * dim / tensor_, 0);
  }
}

void LayerBuilder::AddLatentProjections() {
  const double heads = static_cast<double>(shape_.heads) / tensor_;
  const double query = heads * static_cast<double>(shape_.QueryDim());
  const double q_rank = static_cast<double>(shape_.q_rank);
  const double kv_rank = static_cast<double>(shape_.kv_rank);
  const double rope = static_cast<double>(shape_.qk_rope);
  const double keys =
      heads * static_cast<double>(shape_.qk_nope + shape_.v_dim);
  const auto product = [&](double columns, double inner) {
    return ProductOfRows(rows_, columns, inner);
  };
  if (q_rank > 0) {
    AddProduct("query down", LayerPart::kAttention, product(q_rank, hidden_),
               kWidth * rows_ * hidden_);
  }
  AddProduct("key, value down", LayerPart::kAttention,
             product(kv_rank + rope, hidden_),
             q_rank > 0 ? 0 : kWidth * rows_ * hidden_);
  AddElementwise("latent norms", LayerPart::kMlaUp,
                 2 * rows_ * (q_rank + kv_rank),
                 kWidth * rows_ * (q_rank + kv_rank));
  AddProduct("query up", LayerPart::kMlaUp,
             product(query, q_rank > 0 ? q_rank : hidden_),
             kWidth * rows_ * q_rank);
  AddProduct("key, value up", LayerPart::kMlaUp, product(keys, kv_rank),
             kWidth * rows_ * kv_rank);
  AddElementwise("rotation", LayerPart::kMlaUp, 2 * rows_ * (query + keys), 0);
}

void LayerBuilder::AddCoreAttention(bool is_windowed) {
  const double heads = static_cast<double>(shape_.heads) / tensor_;
  const double kv_heads =
      shape_.IsLatent()
          ? heads
          : std::max(1.0, static_cast<double>(shape_.kv_heads) / tensor_);
  const double keys = static_cast<double>(strategy_.sequence);
  // An indexer chooses as many keys as a window has.
  const int64_t most_keys = shape_.indexer.layers > 0 ? shape_.indexer.top_k
                            : is_windowed             ? shape_.sliding_window
                                                      : strategy_.sequence;
  const double window = std::min(keys, static_cast<double>(most_keys));
  // On average a causal query sees half of its chunk.
  const double pairs = shape_.is_bidirectional ? rows_ * window
                       : is_windowed && shape_.has_chunks
                           ? rows_ * window / 2
                           : rows_ * window * (1 - window / (2 * keys));
  const double query = static_cast<double>(shape_.QueryDim());
  const double value = static_cast<double>(shape_.ValueDim());
  const double values = kWidth * rows_ * heads * value + 4 * rows_ * heads;
  LayerOperation operation{
      .name = "attention",
      .part = LayerPart::kCoreAttention,
      .attention_flops = 2 * pairs * heads * (query + value),
      .forward_launches = 2,
      .backward_launches = 3,
      .saved_bytes =
          kWidth * rows_ * (heads * query + kv_heads * (query + value)) +
          values,
      .made_bytes = values};
  if (strategy_.context > 1) {
    const double keys_and_values = kWidth * rows_ * kv_heads * (query + value);
    if (strategy_.context_exchange == ContextExchange::kAllToAll) {
      const double bytes =
          keys_and_values + kWidth * rows_ * heads * (query + value);
      operation.forward_sent = {CollectiveKind::kAllToAll, GroupKind::kContext,
                                bytes};
      operation.backward_sent = operation.forward_sent;
    } else {
      const double bytes =
          keys_and_values * static_cast<double>(strategy_.context);
      operation.forward_sent = {CollectiveKind::kAllGather, GroupKind::kContext,
                                bytes};
      operation.backward_sent = {CollectiveKind::kAllReduce,
                                 GroupKind::kContext, bytes};
    }
  }
  operations_.push_back(operation);
}

void LayerBuilder::AddUnfusedAttention(double keys) {
  const double heads = static_cast<double>(shape_.heads) / tensor_;
  const double queries = static_cast<double>(strategy_.sequence);
  const double batch = heads * static_cast<double>(strategy_.microbatch);
  const double scores = rows_ * keys * heads;
  const double dim = static_cast<double>(shape_.head_dim);
  const double query_bytes = kWidth * rows_ * heads * dim;
  const double key_bytes = query_bytes * keys / queries;
  const auto product = [&](double columns, double inner) {
    return MatrixProduct{.rows = queries,
                         .columns = columns,
                         .inner = inner,
                         .groups = batch,
                         .has_weights = false};
  };
  AddProduct("scores", LayerPart::kCoreAttention, product(keys, dim),
             query_bytes + key_bytes);
  AddElementwise("softmax", LayerPart::kCoreAttention, 2 * scores,
                 kWidth * scores);
  operations_.back().made_bytes = operations_.back().saved_bytes;
  if (strategy_.drops_scores) {
    AddElementwise("dropout", LayerPart::kCoreAttention, 2.5 * scores,
                   (kWidth + 1) * scores);
    operations_.back().made_bytes = operations_.back().saved_bytes;
  }
  AddProduct("values", LayerPart::kCoreAttention, product(dim, keys),
             key_bytes);
}

// Adds the choice of keys: queries from the low rank of attention's, one key for all heads,
// and the scores of all pairs. Ranks of tensor parallelism do not split it.
void LayerBuilder::AddIndexer() {
  const AttentionIndexer& index = shape_.indexer;
  const double heads = static_cast<double>(index.heads);
  const double dim = static_cast<double>(index.head_dim);
  const double q_rank = static_cast<double>(shape_.q_rank);
  const auto product = [&](double columns, double inner) {
    return ProductOfRows(rows_, columns, inner);
  };
  AddProduct("index queries", LayerPart::kAttention,
             product(heads * dim, q_rank), 0);
  AddProduct("index keys", LayerPart::kAttention, product(dim + heads, hidden_),
             0);
  const double keys = static_cast<double>(strategy_.sequence);
  const double chosen_keys =
      std::min(keys, static_cast<double>(index.top_k)) * rows_;
  operations_.push_back(
      {.name = "index scores",
       .part = LayerPart::kCoreAttention,
       .attention_flops = rows_ * keys * heads * dim,
       .forward_bytes = 4 * chosen_keys,
       .forward_launches = 4,
       .backward_launches = 4,
       .saved_bytes =
           kWidth * rows_ * (heads * dim + dim + heads) + 4 * chosen_keys});
}

// Adds the gate of attention's result, whose input is a part of the product of queries, keys
// and values.
void LayerBuilder::AddGate() {
  if (shape_.attention_gate == 0) return;
  const double values = rows_ * static_cast<double>(shape_.heads) *
                        static_cast<double>(shape_.ValueDim()) / tensor_;
  const double gates =
      rows_ * static_cast<double>(shape_.attention_gate) / tensor_;
  AddElementwise("gate", LayerPart::kAttention, 2 * values + gates,
                 kWidth * (values + gates));
  operations_.back().made_bytes = kWidth * values;
}

void LayerBuilder::AddAttention(bool is_windowed) {
  AddGather(LayerPart::kAttention);
  if (shape_.IsLatent()) {
    AddLatentProjections();
  } else {
    AddProjections();
  }
  if (shape_.indexer.layers > 0) {
    AddShare(shape_.IndexerShare(), [&] { AddIndexer(); });
  }
  const bool is_unfused = strategy_.attention == AttentionKernel::kUnfused;
  if (is_unfused) {
    AddUnfusedAttention(static_cast<double>(strategy_.sequence));
  } else {
    AddCoreAttention(is_windowed);
  }
  AddGate();
  const double values = static_cast<double>(shape_.heads) *
                        static_cast<double>(shape_.ValueDim()) / tensor_;
  AddProduct("output", LayerPart::kAttention,
             {.rows = rows_,
              .columns = hidden_,
              .inner = values,
              .groups = 1,
              .is_low_precision = true},
             is_unfused ? kWidth * rows_ * values : 0);
  AddScatter(LayerPart::kAttention);
}

// Adds attention to the result of an encoder, whose keys and values are other products.
// The result is kept once, with the encoder.
void LayerBuilder::AddCrossAttention() {
  const double source = static_cast<double>(strategy_.source);
  const double source_rows = static_cast<double>(strategy_.microbatch) * source;
  const double heads = static_cast<double>(shape_.heads) / tensor_;
  const double width = heads * static_cast<double>(shape_.head_dim);
  AddGather(LayerPart::kAttention);
  AddProduct("cross query", LayerPart::kAttention,
             ProductOfRows(rows_, width, hidden_),
             kWidth * split_rows_ * hidden_);
  AddGather(LayerPart::kAttention, source_rows);
  AddProduct("cross key, value", LayerPart::kAttention,
             ProductOfRows(source_rows, 2 * width, hidden_), 0);
  const bool is_unfused = strategy_.attention == AttentionKernel::kUnfused;
  if (is_unfused) {
    AddUnfusedAttention(source);
  } else {
    const double values = kWidth * rows_ * width + 4 * rows_ * heads;
    operations_.push_back(
        {.name = "cross attention",
         .part = LayerPart::kCoreAttention,
         .attention_flops = 4 * rows_ * source * width,
         .forward_launches = 2,
         .backward_launches = 3,
         .saved_bytes = kWidth * (rows_ + 2 * source_rows) * width + values,
         .made_bytes = values});
  }
  AddProduct("cross output", LayerPart::kAttention,
             ProductOfRows(rows_, hidden_, width),
             is_unfused ? kWidth * rows_ * width : 0);
  AddScatter(LayerPart::kAttention);
}

// Adds the convolution and the recurrence of a linear mixer. Both keep their input, and the
// recurrence its result and a state for each chunk.
void LayerBuilder::AddScan() {
  const LinearMixer& linear = shape_.linear;
  const double channels =
      rows_ * static_cast<double>(linear.channels) / tensor_;
  const double inner = rows_ * static_cast<double>(linear.inner) / tensor_;
  const double state = rows_ * static_cast<double>(linear.state) / tensor_;
  if (channels > 0) {
    AddElementwise("convolution", LayerPart::kCoreAttention, 2 * channels,
                   kWidth * channels);
  }
  if (state == 0) return;
  const double chunk = static_cast<double>(linear.chunk);
  const double pairs = rows_ * chunk / 2;
  const double states = chunk > 0 ? 4 * state / chunk : 0;
  operations_.push_back(
      {.name = "scan",
       .part = LayerPart::kCoreAttention,
       // Each token is added to the state, which each token reads.
       .attention_flops =
           chunk > 0
               ? 4 * state + 2 * pairs *
                                 static_cast<double>(linear.chunk_products) /
                                 tensor_
               : 0,
       .forward_bytes = kWidth * (channels + 2 * inner) + 2 * states,
       .backward_bytes = 2 * kWidth * (channels + 2 * inner) + 4 * states,
       .forward_launches = 4,
       .backward_launches = 8,
       .saved_bytes = kWidth * (channels > 0 ? channels : 3 * inner) + states});
}

void LayerBuilder::AddLinearMixer() {
  const LinearMixer& linear = shape_.linear;
  const double inputs = static_cast<double>(linear.inputs) / tensor_;
  const double inner = static_cast<double>(linear.inner) / tensor_;
  const auto product = [&](double columns, double depth) {
    return MatrixProduct{.rows = rows_,
                         .columns = columns,
                         .inner = depth,
                         .groups = 1,
                         .is_low_precision = true};
  };
  AddGather(LayerPart::kAttention);
  AddProduct("linear in", LayerPart::kAttention, product(inputs, hidden_),
             kWidth * split_rows_ * hidden_);
  if (linear.matrices > 0) {
    AddProduct(
        "linear middle", LayerPart::kAttention,
        product(static_cast<double>(linear.matrices) / tensor_ / inner, inner),
        kWidth * rows_ * inner);
  }
  AddScan();
  // The gate's input, and the result before its norm.
  AddElementwise("linear gate", LayerPart::kAttention, 3 * rows_ * inner,
                 2 * kWidth * rows_ * inner);
  AddProduct("linear out", LayerPart::kAttention, product(hidden_, inner),
             kWidth * rows_ * inner);
  AddScatter(LayerPart::kAttention);
}

}  // namespace acplan::costmodel
