// Models whose layers do not all attend: counts of their modules are in model_test.cc.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/training_report.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kNext = R"("model_type": "qwen3_next",
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120,
    "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32)";

ModelShape NextWith(int64_t interval) {
  return ParseHuggingFaceConfig(
      fmt::format(R"({{{}, "full_attention_interval": {}}})", kNext, interval),
      "c");
}

TEST(Hybrids, CountTheLayersOfEachMixer) {
  const ModelShape next = NextWith(4);
  EXPECT_EQ(next.linear.layers, 36);
  EXPECT_EQ(next.AttentionLayers(), 12);
  // As on its page: 80B, of which 3B are active; without rounding as its modules.
  EXPECT_EQ(CountParameters(next), 79'674'391'296);
  EXPECT_EQ(CountActiveParameters(next), 3'874'929'408);
  const ModelShape nemotron = ParseHuggingFaceConfig(
      R"({"model_type": "nemotron_h", "hidden_size": 64, "vocab_size": 99,
          "num_hidden_layers": 7, "num_attention_heads": 4, "head_dim": 16,
          "num_key_value_heads": 2, "intermediate_size": 128,
          "hybrid_override_pattern": "M-M*-ME", "mamba_num_heads": 8,
          "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
          "n_routed_experts": 4, "moe_intermediate_size": 32})",
      "c");
  EXPECT_EQ(nemotron.layers, 7);
  EXPECT_EQ(nemotron.linear.layers, 3);
  EXPECT_EQ(nemotron.AttentionLayers(), 1);
  EXPECT_EQ(nemotron.MoeLayers(), 1);
  EXPECT_DOUBLE_EQ(nemotron.DenseShare(), 1. / 3);
}

// The keys of a published file of MiniMax-M2 that its modules do not have.
TEST(Hybrids, ReadTheModulesOfPredictionOfMiniMax) {
  const auto layers = [](std::string_view uses) {
    return ParseHuggingFaceConfig(
               fmt::format(R"({{"model_type": "minimax_m2", "hidden_size": 64,
                   "num_hidden_layers": 2, "num_attention_heads": 4,
                   "intermediate_size": 96, "vocab_size": 99,
                   "num_local_experts": 8, "num_experts_per_tok": 2,
                   "attn_type_list": [1, 1], "mlp_intermediate_size": 256,
                   "num_mtp_modules": 3, "mtp_transformer_layers": 1,
                   "use_mtp": {}}})",
                           uses),
               "c")
        .mtp_layers;
  };
  EXPECT_EQ(layers("true"), 3);
  EXPECT_EQ(layers("false"), 0);
}

// Returns the sum of a quantity of a layer's operations over all layers.
template <typename Quantity>
double OverLayers(const ModelShape& shape, const TrainingStrategy& strategy,
                  LayerForm form, int64_t layers, Quantity quantity) {
  double sum = 0;
  for (const LayerOperation& operation :
       LayerOperations(shape, strategy, form)) {
    sum += quantity(operation);
  }
  return sum * static_cast<double>(layers);
}

// The mean layer has the bytes and products of layers of each kind.
TEST(Hybrids, MeanOfLayersIsThatOfTheirKinds) {
  const ModelShape shape = NextWith(4);
  TrainingStrategy strategy;
  strategy.sequence = 8192;
  strategy.microbatch = 2;
  strategy.expert = 8;
  const auto bytes = [](const LayerOperation& o) { return o.saved_bytes; };
  const auto products = [](const LayerOperation& o) {
    return o.share * (2 * o.product.rows * o.product.columns * o.product.inner *
                          o.product.groups +
                      o.attention_flops);
  };
  const auto compare = [&](auto quantity) {
    const auto sum_of = [&](MixerChoice mixer, int64_t layers) {
      return OverLayers(shape, strategy, {.is_moe = true, .mixer = mixer},
                        layers, quantity);
    };
    const double kinds =
        sum_of(MixerChoice::kAttention, 12) + sum_of(MixerChoice::kLinear, 36);
    EXPECT_NEAR(sum_of(MixerChoice::kMean, 48), kinds, 1e-9 * kinds);
    EXPECT_GT(sum_of(MixerChoice::kAttention, 1), 0);
    EXPECT_NE(sum_of(MixerChoice::kAttention, 1),
              sum_of(MixerChoice::kLinear, 1));
  };
  compare(bytes);
  compare(products);
}

TrainingJob JobOf(const ModelShape& shape, int64_t sequence) {
  TrainingJob job = Llama8B();
  job.shape = shape;
  job.strategy = {};
  job.strategy.gpus = 8;
  job.strategy.expert = shape.IsMoe() ? 8 : 1;
  job.strategy.sequence = sequence;
  job.strategy.global_batch = 8;
  job.strategy.microbatch = 1;
  return job;
}

// The work of attention rises with the square of the sequence, that of a linear mixer does
// not: the more layers attend, the more a longer sequence costs.
TEST(Hybrids, LongSequencesCostLessThanWithAttention) {
  const auto growth = [](const ModelShape& shape) {
    return CountIterationFlops(JobOf(shape, 262144)).model /
           CountIterationFlops(JobOf(shape, 4096)).model / 64;
  };
  const double hybrid = growth(NextWith(4));
  const double sparser = growth(NextWith(12));
  const double attention = growth(NextWith(1));
  EXPECT_LT(sparser, hybrid);
  EXPECT_LT(hybrid, attention);
  EXPECT_GT(sparser, 1);
}

TEST(Hybrids, SparseAttentionIsCheaperThanFull) {
  constexpr std::string_view kSizes = R"("hidden_size": 7168,
      "num_hidden_layers": 61, "num_attention_heads": 128,
      "num_key_value_heads": 128, "intermediate_size": 18432,
      "vocab_size": 129280)";
  const auto flops = [&](std::string_view type) {
    const ModelShape shape = ParseHuggingFaceConfig(
        fmt::format(R"({{"model_type": "{}", {}}})", type, kSizes), "c");
    return CountIterationFlops(JobOf(shape, 131072)).model;
  };
  EXPECT_LT(flops("deepseek_v32"), .5 * flops("deepseek_v3"));
}

TEST(Hybrids, RefuseWhatIsNotModelled) {
  const auto complaint = [](auto change) -> std::string {
    TrainingJob job = JobOf(NextWith(4), 4096);
    change(job.strategy);
    try {
      CheckStatedStrategy(job);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint([](TrainingStrategy&) {}), "none");
  EXPECT_THAT(complaint([](TrainingStrategy& s) {
                s.recomputation = Recomputation::kPlan;
              }),
              AllOf(HasSubstr("recompute"), HasSubstr("linear mixers")));
  EXPECT_THAT(complaint([](TrainingStrategy& s) { s.context = 2; }),
              HasSubstr("cp: expected 1"));
  EXPECT_THAT(complaint([](TrainingStrategy& s) {
                s.implementation = Implementation::kEager;
                s.expert = 1;
              }),
              HasSubstr("implementation: expected fused"));
}

}  // namespace
}  // namespace acplan::costmodel
