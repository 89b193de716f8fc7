#include "costmodel/calculon/application/huge_models.h"

#include <gtest/gtest.h>

#include <cmath>

namespace acplan::costmodel {

namespace {

TEST(HugeModelsTest, TheFirstIsAsWorkedByHand) {
  const HugeModel model = HugeModels().front();
  EXPECT_EQ(model.shape.hidden, 192 * 128);
  EXPECT_EQ(model.shape.feedforward, 4 * 192 * 128);
  EXPECT_EQ(model.shape.attn_heads, 128);
  EXPECT_EQ(model.shape.attn_size, 192);
  EXPECT_EQ(model.shape.num_blocks, 128);
  EXPECT_EQ(model.shape.seq_size, 8192);
  EXPECT_EQ(model.batch_size, 3072);
  EXPECT_EQ(model.ratio, 192);
  // 192 is a multiple of 32, so that heads are as wide as the model:
  // 12 * blocks * hidden^2.
  EXPECT_EQ(model.parameters, 12.0 * 128 * 24576 * 24576);
}

TEST(HugeModelsTest, NoOtherHiddenSizeIsNearerToTheTarget) {
  const std::vector<HugeModel> models = HugeModels();
  ASSERT_EQ(models.size(), 15U);
  for (size_t i = 0; i < models.size(); ++i) {
    const auto blocks = static_cast<double>(models[i].shape.num_blocks);
    const auto hidden = static_cast<double>(models[i].shape.hidden);
    EXPECT_EQ(blocks, 128 + 32 * static_cast<double>(i));
    EXPECT_EQ(models[i].shape.hidden % 1024, 0);
    const double target = 192 + 32.0 / 3 * static_cast<double>(i);
    // Half a step, unless the range ends.
    if (hidden < 192 * 1024) {
      EXPECT_LE(std::abs(hidden / blocks - target) * blocks, 512 + 1e-6);
    }
  }
  EXPECT_EQ(models.back().shape.hidden, 192 * 1024);
}

}  // namespace

}  // namespace acplan::costmodel
