// The sum of the tensors that autograd saves for each operator of a block. An operator
// saves what its derivative reads: a product its input, a norm in float32 the converted
// input and the normed one, a rotation nothing of the tensor that it rotates, a gate both
// factors. A tensor that several operators save counts once, and a view counts as the whole
// tensor behind it.
//
// The peak of a step is either where the loss's gradient is made, since logits in float32
// are the widest tensors, three of them at once; or in the backward pass of the last block,
// if the vocabulary is small or blocks are recomputed.
#include "costmodel/training/memory/eager_memory.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

constexpr double kHalf = 2;    // bytes of bf16
constexpr double kSingle = 4;  // bytes of float32
// The bytes for each token and expert that it goes to: index, weights, places and their
// inverse, 8 bytes each except the weights.
constexpr double kBytesOfRoute = 40;

double D(int64_t number) { return static_cast<double>(number); }

// Returns the bytes of a norm over `width` elements of a row in `groups` pieces. LayerNorm
// saves its input itself; `saves_input` says that this tensor does not count elsewhere.
double NormBytes(NormKind kind, double width, double groups, bool saves_input) {
  switch (kind) {
    case NormKind::kLayerNorm:
      return (saves_input ? kHalf * width : 0) + 2 * kSingle * groups;
    case NormKind::kRms:
      return (kSingle + kHalf) * width + kSingle * groups;
    case NormKind::kRmsWide:
      return 2 * kSingle * width + kSingle * groups;
  }
  return 0;
}

double QkNormBytes(const ModelShape& shape) {
  const double queries = D(shape.heads * shape.head_dim);
  const double keys = D(shape.kv_heads * shape.head_dim);
  const ModuleForm& form = shape.form;
  switch (form.qk_norm) {
    case QkNorm::kNone:
      return 0;
    case QkNorm::kHeads:
      return NormBytes(form.norm, queries, D(shape.heads), false) +
             NormBytes(form.norm, keys, D(shape.kv_heads), false);
    case QkNorm::kWhole:
      return NormBytes(form.norm, queries, 1, false) +
             NormBytes(form.norm, keys, 1, false);
  }
  return 0;
}

// Returns whether attention takes a mask. A window that is shorter than the sequence needs
// one, and with a mask SDPA takes no grouped queries: keys and values are repeated for each
// head.
bool HasMask(const ModelShape& shape, const TrainingStrategy& s) {
  return shape.form.has_scores ||
         (shape.sliding_window > 0 && shape.sliding_window < s.sequence);
}

// Returns the bytes of queries, keys and values as attention saves them.
double QkvBytes(const ModelShape& shape, bool has_mask) {
  const double queries = D(shape.heads * shape.head_dim);
  const double keys = D(shape.kv_heads * shape.head_dim);
  if (has_mask) return kHalf * 3 * queries;
  switch (shape.form.qkv) {
    case QkvLayout::kSeparate:
    case QkvLayout::kWhole:
      return kHalf * (queries + 2 * keys);
    case QkvLayout::kRotated:
      return kHalf * (queries + keys) + kHalf * (queries + 2 * keys);
  }
  return 0;
}

double LatentBytes(const ModelShape& shape) {
  const double heads = D(shape.heads);
  const double ranks = D(shape.q_rank + shape.kv_rank);
  const double norms = shape.q_rank > 0 ? 2 : 1;
  return NormBytes(shape.form.norm, ranks, norms, false) + kHalf * ranks +
         kHalf * 2 * heads * D(shape.QueryDim()) +
         kHalf * heads * D(shape.qk_nope + shape.v_dim);
}

// Returns the bytes for a row, without the norms around attention.
double AttentionBytes(const ModelShape& shape, const TrainingStrategy& s) {
  const double heads = D(shape.heads);
  const double values = heads * D(shape.ValueDim());
  double bytes = kHalf * D(shape.hidden);  // the input of the products
  bytes += shape.IsLatent()
               ? LatentBytes(shape)
               : QkNormBytes(shape) + QkvBytes(shape, HasMask(shape, s));
  bytes += kHalf * values;  // the result, which the next product reads
  if (shape.form.has_scores) {
    const double score = kSingle + kHalf + (shape.form.caps_scores ? kHalf : 0);
    return bytes + score * heads * D(s.sequence);
  }
  bytes += kSingle * heads;  // the logarithms of sums
  if (HasMask(shape, s)) bytes += kHalf * D(s.sequence);
  return bytes + (shape.form.copies_attention ? kHalf * values : 0);
}

double ExpertBytes(const ModelShape& shape) {
  const double top_k = D(shape.top_k);
  const double hidden = D(shape.hidden);
  const double width = D(shape.expert_feedforward);
  double bytes = kSingle * D(shape.experts) + kBytesOfRoute * top_k;
  if (shape.form.has_wide_router) bytes += kSingle * hidden;
  // Permuted inputs and results; gate, up, activation and their product.
  bytes += top_k * kHalf * (2 * hidden + 4 * width);
  return bytes + kHalf * 4 * D(shape.shared_feedforward);
}

double FeedforwardBytes(const ModelShape& shape, bool is_moe) {
  const double input = kHalf * D(shape.hidden);
  if (is_moe) return input + ExpertBytes(shape);
  return input + kHalf * shape.form.activation_copies * D(shape.feedforward);
}

double BlockNormBytes(const ModelShape& shape) {
  const double hidden = D(shape.hidden);
  const NormKind kind = shape.form.norm;
  const double one = NormBytes(kind, hidden, 1, true);
  switch (shape.form.norms) {
    case BlockNorms::kBefore:
    case BlockNorms::kAfter:
      return 2 * one;
    case BlockNorms::kBoth:
      return 4 * one;
    case BlockNorms::kParallel:
      return one + NormBytes(kind, hidden, 1, false);
  }
  return 0;
}

double RowsOf(const TrainingStrategy& s) {
  return D(s.microbatch * s.sequence);
}

// Returns the bytes of gradients during the backward pass of a block: two of its widest
// tensor, and two of the residual stream.
double BackwardBytes(const ModelShape& shape, const TrainingStrategy& s) {
  const double gated = shape.is_gated ? 2 : 1;
  const double dense =
      D(shape.dense_layers > 0 || !shape.IsMoe() ? shape.feedforward : 0);
  const double experts = D(shape.top_k * shape.expert_feedforward);
  const double scores =
      shape.form.has_scores ? 2 * D(shape.heads * s.sequence) : 0;
  const double widest = std::max({gated * dense, gated * experts, scores});
  return RowsOf(s) * kHalf * 2 * (widest + D(shape.hidden));
}

}  // namespace

double EagerLayerBytes(const ModelShape& shape, const TrainingStrategy& s,
                       bool is_moe) {
  const double of_row = BlockNormBytes(shape) + AttentionBytes(shape, s) +
                        FeedforwardBytes(shape, is_moe) +
                        shape.form.dropout_masks * D(shape.hidden);
  const double router = is_moe && shape.form.has_wide_router
                            ? kSingle * D(shape.hidden * shape.experts)
                            : 0;
  return RowsOf(s) * of_row + router;
}

double EagerEndBytes(const ModelShape& shape, const TrainingStrategy& s) {
  const double hidden = D(shape.hidden);
  double of_row = NormBytes(shape.form.norm, hidden, 1, true) + kHalf * hidden +
                  kSingle * D(shape.vocabulary);
  if (shape.form.caps_scores) of_row += kHalf * D(shape.vocabulary);
  if (shape.form.has_embedding_norm) {
    of_row += NormBytes(shape.form.norm, hidden, 1, true);
  }
  if (shape.form.has_embedding_dropout) of_row += hidden;
  of_row += 8;  // the labels
  const double rotation =
      shape.has_rope ? kHalf * 2 * D(s.sequence * shape.head_dim) : 0;
  // Without a fused kernel there are masks of all scores of each sequence: one, and one for
  // windows. (SDPA makes its own in each layer.)
  const double masks =
      shape.form.has_scores ? (shape.sliding_window > 0 ? 2 : 1) : 0;
  const double mask = kHalf * masks * RowsOf(s) * D(s.sequence);
  return RowsOf(s) * of_row + rotation + mask;
}

double EagerLossBytes(const ModelShape& shape, const TrainingStrategy& s) {
  return 2 * kSingle * RowsOf(s) * D(shape.vocabulary);
}

RankMemory EagerActivations(const TrainingJob& job) {
  const ModelShape& shape = job.shape;
  const TrainingStrategy& s = job.strategy;
  const int64_t moe = shape.MoeLayers();
  const int64_t dense = shape.layers - moe;
  // Layers without a window have no repeated heads.
  const int64_t grouped = shape.full_layers;
  const double repeated = shape.form.has_scores
                              ? 0
                              : QkvBytes(shape, true) - QkvBytes(shape, false) +
                                    kHalf * D(s.sequence);
  const bool is_full = s.recomputation == Recomputation::kFull;
  int64_t recomputed_layers = 0;
  if (is_full) {
    recomputed_layers = RecomputedLayers(s, shape.layers);
  }
  const int64_t dense_again = std::min(recomputed_layers, dense);
  const int64_t moe_again = recomputed_layers - dense_again;
  const double dense_bytes = dense > 0 ? EagerLayerBytes(shape, s, false) : 0;
  const double moe_bytes = moe > 0 ? EagerLayerBytes(shape, s, true) : 0;
  RankMemory memory;
  memory.activations =
      D(dense - dense_again) * dense_bytes + D(moe - moe_again) * moe_bytes +
      D(recomputed_layers) * kHalf * RowsOf(s) * D(shape.hidden);
  if (recomputed_layers == 0 && HasMask(shape, s)) {
    memory.activations -= D(grouped) * RowsOf(s) * repeated;
  }
  const double loss = EagerEndBytes(shape, s) + EagerLossBytes(shape, s);
  const double block =
      BackwardBytes(shape, s) + (recomputed_layers == shape.layers
                                     ? (moe > 0 ? moe_bytes : dense_bytes)
                                     : 0);
  // Only one of the two exists at the peak.
  if (loss >= block) {
    memory.logits = loss;
  } else {
    memory.working = block;
  }
  return memory;
}

}  // namespace acplan::costmodel
