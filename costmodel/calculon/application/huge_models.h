#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/calculon/application/model.h"

namespace acplan::costmodel {

// A model shape that grows in width and depth together.
struct HugeModel {
  Model shape;
  double parameters = 0;   // the matrices of the blocks only
  int64_t batch_size = 0;  // global
  double ratio = 0;        // hidden / num_blocks
};

// Returns the models of Calculon's study of huge models. For 128 to 576 blocks in steps of
// 32, the hidden size is the multiple of 1024 from 24,576 to 196,608 that is nearest to a
// target ratio of hidden size to blocks; the target rises linearly from 192 at 128 blocks
// to 320 at 512. There are as many heads as blocks, each of size hidden/blocks, rounded
// (half to even). The count of parameters uses head sizes rounded to multiples of 32.
std::vector<HugeModel> HugeModels();

}  // namespace acplan::costmodel
