#include <gtest/gtest.h>

#include "costmodel/training/layer/layer_operations.h"

namespace acplan::costmodel {
namespace {

struct Launches {
  double forward = 0;
  double backward = 0;
};

// The launches of the experts of a layer and of their exchange.
Launches LaunchesOfExperts(int64_t expert_parallel, bool is_fused,
                           bool dedupes_tokens = false) {
  const ModelShape shape{.layers = 1,
                         .hidden = 64,
                         .heads = 4,
                         .vocabulary = 128,
                         .is_gated = true,
                         .experts = 4 * expert_parallel,
                         .top_k = 2,
                         .expert_feedforward = 128};
  const TrainingStrategy strategy{.gpus = expert_parallel,
                                  .sequence = 256,
                                  .microbatch = 1,
                                  .expert = expert_parallel,
                                  .dedupes_tokens = dedupes_tokens,
                                  .fuses_experts = is_fused};
  Launches sum;
  for (const LayerOperation& operation :
       LayerOperations(shape, strategy, {.is_moe = true})) {
    if (operation.part != LayerPart::kMoe &&
        operation.part != LayerPart::kMoeActivation) {
      continue;
    }
    sum.forward += operation.forward_launches;
    sum.backward += operation.backward_launches;
  }
  return sum;
}

// The counts of docs/measured/expert_launches.csv, which compare_expert_launches.py makes of
// the modules: Megatron-Core 0.16.1 has 49 operators and 7 of each expert in the forward pass,
// 30 and 13 in the backward pass (39 and 7, 27 and 13 without an all-to-all). With grouped
// products, there are 3 and 5 in place of those of each expert. torchtitan 0.3.0, which has
// grouped products and no auxiliary loss, has 50 and 40.
TEST(ExpertLaunches, AreThoseOfMegatronCore) {
  const Launches exchanged = LaunchesOfExperts(2, true);
  EXPECT_NEAR(exchanged.forward, 49 + 3, 1);
  EXPECT_NEAR(exchanged.backward, 30 + 5, 1);
  const Launches alone = LaunchesOfExperts(1, true);
  EXPECT_NEAR(alone.forward, 39 + 3, 1);
  EXPECT_NEAR(alone.backward, 27 + 5, 1);
}

TEST(ExpertLaunches, AreAboutThoseOfTorchtitan) {
  const Launches exchanged = LaunchesOfExperts(2, true);
  EXPECT_NEAR(exchanged.forward, 50, 5);
  EXPECT_NEAR(exchanged.backward, 40, 5);
}

TEST(ExpertLaunches, AreMoreIfExpertsAreNotOneKernel) {
  const Launches fused = LaunchesOfExperts(2, true);
  const Launches single = LaunchesOfExperts(2, false);
  EXPECT_EQ(single.forward - fused.forward, 2 * (4 - 1));
  EXPECT_EQ(single.backward - fused.backward, 2 * 2 * (4 - 1));
}

TEST(ExpertLaunches, AreFewerIfTheExchangeIsFused) {
  EXPECT_LT(LaunchesOfExperts(2, true, true).forward,
            LaunchesOfExperts(2, true).forward);
}

// Eight choices among as many ranks go to 8 (1 - (7 / 8)^8) of them.
TEST(DistinctShare, IsTheExpectationOfPlaces) {
  EXPECT_NEAR(DistinctShare(8, 8), .6564, 1e-4);
  EXPECT_DOUBLE_EQ(DistinctShare(8, 1), 1);
  EXPECT_DOUBLE_EQ(DistinctShare(1, 4), .25);
}

}  // namespace
}  // namespace acplan::costmodel
