#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/calculon/application/model.h"

namespace acplan::costmodel {

// A model shape that grows in width and depth together.
struct HugeModel {
  Model shape;
  double parameters = 0;   // matrices of the blocks alone
  int64_t batch_size = 0;  // global
  double ratio = 0;        // hidden / num_blocks
};

// Calculon's study of huge models: for 128 to 576 blocks in steps of 32 the
// hidden size, a multiple of 1024 from 24,576 to 196,608, that lies nearest to
// a target ratio of hidden size to blocks, which rises linearly from 192 at 128
// blocks to 320 at 512. As many heads as blocks, each of hidden/blocks, rounded
// (half to even); the count of parameters takes heads rounded to multiples of
// 32.
std::vector<HugeModel> HugeModels();

}  // namespace acplan::costmodel
