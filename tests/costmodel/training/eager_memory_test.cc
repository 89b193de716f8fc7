#include "costmodel/training/memory/eager_memory.h"

#include <gtest/gtest.h>

#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

// Returns a small model for sums by hand of the bytes that autograd saves of a
// token: hidden 8, 4 heads of 2 with 2 for keys and values, feed-forward 16,
// vocabulary 100.
TrainingJob Tiny() {
  TrainingJob job = Llama8B();
  job.shape = {.layers = 4,
               .hidden = 8,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 2,
               .feedforward = 16,
               .vocabulary = 100,
               .is_gated = true};
  job.strategy = {};
  job.strategy.sequence = 10;
  job.strategy.global_batch = 3;
  job.strategy.microbatch = 3;
  job.strategy.implementation = Implementation::kEager;
  return job;
}
constexpr double kTokens = 30;

// Two norms: 4 bytes an element for the float32 copy and 2 for the result, 4 a
// row.
constexpr double kNorms = 2 * (6 * 8 + 4);
// The products' input, queries, keys, values, the result, and 4 a head.
constexpr double kAttention = 2 * 8 + 2 * (8 + 4 + 4) + 2 * 8 + 4 * 4;
// The products' input; gate, up, activation, and gate times up.
constexpr double kFeedforward = 2 * 8 + 2 * 4 * 16;
constexpr double kLayer = kNorms + kAttention + kFeedforward;

// Returns the bytes of a token and layer after a change of the form.
template <typename Change>
double LayerAfter(Change change, bool is_moe = false) {
  TrainingJob job = Tiny();
  change(job.shape);
  return EagerLayerBytes(job.shape, job.strategy, is_moe) / kTokens;
}

TEST(EagerLayerBytes, AreTheTensorsOfALlama) {
  EXPECT_DOUBLE_EQ(LayerAfter([](ModelShape&) {}), kLayer);
}

TEST(EagerLayerBytes, FollowTheNorms) {
  const auto with = [](NormKind norm, BlockNorms norms) {
    return LayerAfter([=](ModelShape& shape) {
      shape.form.norm = norm;
      shape.form.norms = norms;
    });
  };
  using enum BlockNorms;
  const double rest = kLayer - kNorms;
  const double layer_norm = 2 * 8 + 8;  // its input; mean and deviation
  EXPECT_DOUBLE_EQ(with(NormKind::kLayerNorm, kBefore), rest + 2 * layer_norm);
  EXPECT_DOUBLE_EQ(with(NormKind::kLayerNorm, kBoth), rest + 4 * layer_norm);
  // Both read the same input, which counts once.
  EXPECT_DOUBLE_EQ(with(NormKind::kLayerNorm, kParallel),
                   rest + 2 * layer_norm - 2 * 8);
  EXPECT_DOUBLE_EQ(with(NormKind::kRms, kAfter), kLayer);
  EXPECT_DOUBLE_EQ(with(NormKind::kRmsWide, kBefore), rest + 2 * (8 * 8 + 4));
}

TEST(EagerLayerBytes, FollowTheNormsOfQueriesAndKeys) {
  const auto with = [](QkNorm norm) {
    return LayerAfter([=](ModelShape& shape) { shape.form.qk_norm = norm; });
  };
  EXPECT_DOUBLE_EQ(with(QkNorm::kHeads), kLayer + 6 * (8 + 4) + 4 * (4 + 2));
  EXPECT_DOUBLE_EQ(with(QkNorm::kWhole), kLayer + 6 * (8 + 4) + 4 * 2);
}

TEST(EagerLayerBytes, FollowWhereQueriesKeysAndValuesLie) {
  const auto with = [](QkvLayout qkv) {
    return LayerAfter([=](ModelShape& shape) { shape.form.qkv = qkv; });
  };
  EXPECT_DOUBLE_EQ(with(QkvLayout::kWhole), kLayer);
  // Values are a view of the one product, which therefore stays as a whole.
  EXPECT_DOUBLE_EQ(with(QkvLayout::kRotated), kLayer + 2 * (8 + 4));
}

TEST(EagerLayerBytes, RepeatKeysAndValuesForAMask) {
  const auto with = [](int64_t window) {
    return LayerAfter([=](ModelShape& s) { s.sliding_window = window; });
  };
  // Keys and values of 8 elements instead of 4, and a row of the mask.
  EXPECT_DOUBLE_EQ(with(9), kLayer + 2 * (4 + 4) + 2 * 10);
  EXPECT_DOUBLE_EQ(with(10), kLayer);
}

TEST(EagerLayerBytes, HaveTheScoresWhereNoKernelIsFused) {
  const auto with = [](bool caps) {
    return LayerAfter([=](ModelShape& shape) {
      shape.form.has_scores = true;
      shape.form.caps_scores = caps;
    });
  };
  // Softmax in float32 and its copy in bf16, of 4 heads; no logarithms of sums.
  const double rest = kLayer + 2 * (4 + 4) - 4 * 4;
  EXPECT_DOUBLE_EQ(with(false), rest + 6 * 4 * 10);
  EXPECT_DOUBLE_EQ(with(true), rest + 8 * 4 * 10);
}

TEST(EagerLayerBytes, CountCopiesAndMasks) {
  EXPECT_DOUBLE_EQ(
      LayerAfter([](ModelShape& shape) { shape.form.copies_attention = true; }),
      kLayer + 2 * 8);
  EXPECT_DOUBLE_EQ(
      LayerAfter([](ModelShape& shape) { shape.form.activation_copies = 2; }),
      kLayer - 2 * 2 * 16);
  EXPECT_DOUBLE_EQ(
      LayerAfter([](ModelShape& shape) { shape.form.dropout_masks = 3; }),
      kLayer + 3 * 8);
}

TEST(EagerLayerBytes, HaveTheTensorsOfExperts) {
  const auto with = [](bool wide) {
    return LayerAfter(
        [=](ModelShape& shape) {
          shape.experts = 6;
          shape.top_k = 2;
          shape.expert_feedforward = 5;
          shape.shared_feedforward = 7;
          shape.form.has_wide_router = wide;
        },
        /*is_moe=*/true);
  };
  // Scores of the router, two routes, permuted inputs and results, four of each
  // expert's width, four of the shared one's.
  const double experts = 4 * 6 + 2 * 40 + 2 * 2 * (2 * 8 + 4 * 5) + 2 * 4 * 7;
  const double narrow = kNorms + kAttention + 2 * 8 + experts;
  EXPECT_DOUBLE_EQ(with(false), narrow);
  // Its input and its weight once more, in float32.
  EXPECT_NEAR(with(true), narrow + 4 * 8 + 4 * 8 * 6 / kTokens, 1e-9);
}

TEST(EagerLayerBytes, HaveTheRanksOfLatentAttention) {
  const auto with = [](int64_t q_rank) {
    return LayerAfter([=](ModelShape& shape) {
      shape.q_rank = q_rank;
      shape.kv_rank = 3;
      shape.qk_nope = 2;
      shape.qk_rope = 1;
      shape.v_dim = 5;
    });
  };
  const double rest = kNorms + kFeedforward + 2 * 8;
  // Queries and keys of 3, the up-projection's keys and values, the result of 5
  // a head, 4 a head.
  const double heads = 2 * 2 * 4 * 3 + 2 * 4 * (2 + 5) + 2 * 4 * 5 + 4 * 4;
  EXPECT_DOUBLE_EQ(with(0), rest + heads + (6 * 3 + 4) + 2 * 3);
  EXPECT_DOUBLE_EQ(with(4), rest + heads + (6 * 7 + 2 * 4) + 2 * 7);
}

TEST(EagerEndBytes, AreNormLogitsAndLabels) {
  TrainingJob job = Tiny();
  const auto bytes = [&] { return EagerEndBytes(job.shape, job.strategy); };
  // The last norm, the logits' input, logits in float32, labels.
  double expected = kTokens * (6 * 8 + 4 + 2 * 8 + 4 * 100 + 8);
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.has_rope = true;
  expected += 2 * 2 * 10 * 2;  // sines and cosines, of all sequences together
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.form.has_embedding_norm = true;
  expected += kTokens * (6 * 8 + 4);
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.form.has_embedding_dropout = true;
  expected += kTokens * 8;
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.form.caps_scores = true;
  expected += kTokens * 2 * 100;
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.form.has_scores = true;
  expected += 2 * kTokens * 10;
  EXPECT_DOUBLE_EQ(bytes(), expected);
  job.shape.sliding_window = 4;
  EXPECT_DOUBLE_EQ(bytes(), expected + 2 * kTokens * 10);
}

TEST(EagerActivations, PeakAtTheLossOfAWideVocabulary) {
  const TrainingJob job = Tiny();
  const RankMemory memory = EagerActivations(job);
  EXPECT_DOUBLE_EQ(memory.activations, 4 * kTokens * kLayer);
  EXPECT_DOUBLE_EQ(memory.logits, EagerEndBytes(job.shape, job.strategy) +
                                      kTokens * 2 * 4 * 100);
  EXPECT_EQ(memory.working, 0);
}

TEST(EagerActivations, PeakInABlockOfANarrowVocabulary) {
  TrainingJob job = Tiny();
  job.shape.vocabulary = 1;
  const RankMemory memory = EagerActivations(job);
  EXPECT_EQ(memory.logits, 0);
  // Gradients: two of gate and up, two of the residual stream.
  EXPECT_DOUBLE_EQ(memory.working, kTokens * 2 * 2 * (2 * 16 + 8));
  job.strategy.recomputation = Recomputation::kFull;
  const RankMemory with_recomputation = EagerActivations(job);
  // Only inputs are kept; the block whose backward runs has been made again.
  EXPECT_DOUBLE_EQ(with_recomputation.activations, 4 * kTokens * 2 * 8);
  EXPECT_DOUBLE_EQ(with_recomputation.working,
                   memory.working + kTokens * kLayer);
}

TEST(EagerActivations, RecomputeTheFirstLayers) {
  TrainingJob job = Tiny();
  job.strategy.recomputation = Recomputation::kFull;
  job.strategy.full_layers = 3;
  EXPECT_DOUBLE_EQ(EagerActivations(job).activations,
                   kTokens * (kLayer + 3 * 2 * 8));
  job.strategy.full_layers = 9;
  EXPECT_DOUBLE_EQ(EagerActivations(job).activations, kTokens * 4 * 2 * 8);
}

TEST(EagerActivations, RepeatNothingInLayersWithoutAWindow) {
  TrainingJob job = Tiny();
  job.shape.sliding_window = 5;
  job.shape.full_layers = 2;
  const double windowed = kLayer + 2 * (4 + 4) + 2 * 10;
  EXPECT_DOUBLE_EQ(EagerActivations(job).activations,
                   kTokens * (2 * windowed + 2 * kLayer));
}

TEST(EagerActivations, DivideLayersIntoDenseOnesAndExperts) {
  TrainingJob job = Tiny();
  job.shape.experts = 6;
  job.shape.top_k = 2;
  job.shape.expert_feedforward = 5;
  job.shape.dense_layers = 1;
  const double moe = EagerLayerBytes(job.shape, job.strategy, /*is_moe=*/true);
  EXPECT_DOUBLE_EQ(EagerActivations(job).activations,
                   kTokens * kLayer + 3 * moe);
  // The first layers are the dense ones.
  job.strategy.recomputation = Recomputation::kFull;
  job.strategy.full_layers = 2;
  EXPECT_DOUBLE_EQ(EagerActivations(job).activations,
                   2 * moe + 2 * kTokens * 2 * 8);
}

}  // namespace
}  // namespace acplan::costmodel
