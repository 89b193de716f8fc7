#include "costmodel/calculon/application/huge_models.h"

#include <cmath>

namespace acplan::costmodel {

namespace {

double RoundedTo(double value, double step) {
  return std::nearbyint(value / step) * step;
}

double MatrixParameters(double hidden, double blocks) {
  const double heads = blocks;
  const double head_size = RoundedTo(hidden / blocks, 32);
  return 8 * blocks * hidden * hidden + 4 * blocks * hidden * heads * head_size;
}

int64_t HiddenNearest(double blocks, double target) {
  int64_t best = 0;
  double least = INFINITY;
  for (int64_t hidden = 24 * 1024; hidden <= 192 * 1024; hidden += 1024) {
    const double miss =
        std::abs(static_cast<double>(hidden) / blocks / target - 1);
    if (miss < least) {
      least = miss;
      best = hidden;
    }
  }
  return best;
}

}  // namespace

std::vector<HugeModel> HugeModels() {
  constexpr int64_t kLeastBlocks = 128;
  constexpr int64_t kBlockStep = 32;
  constexpr double kSlope = (320.0 - 192.0) / 12;
  std::vector<HugeModel> models;
  for (int64_t num_blocks = kLeastBlocks; num_blocks <= 576;
       num_blocks += kBlockStep) {
    const auto blocks = static_cast<double>(num_blocks);
    const double step = (blocks - kLeastBlocks) / kBlockStep;
    const int64_t hidden = HiddenNearest(blocks, kSlope * step + 192);
    const auto width = static_cast<double>(hidden);
    models.push_back({.shape = {.hidden = hidden,
                                .feedforward = 4 * hidden,
                                .seq_size = 8192,
                                .attn_heads = num_blocks,
                                .attn_size = static_cast<int64_t>(
                                    RoundedTo(width / blocks, 1)),
                                .num_blocks = num_blocks},
                      .parameters = MatrixParameters(width, blocks),
                      .batch_size = 3072,
                      .ratio = width / blocks});
  }
  return models;
}

}  // namespace acplan::costmodel
