#pragma once

namespace acplan::costmodel {

// The precision of the large products; everything else is bf16 (or fp16, which counts the
// same).
enum class ProductPrecision {
  kBf16,
  kFp8Delayed,    // one scale per tensor, from the iteration before
  kFp8Current,    // one scale per tensor, from the tensor itself
  kFp8Rowwise,    // one scale per row
  kFp8Blockwise,  // one scale per block
  kMxfp8,         // one scale for 32 elements, in hardware
  kNvfp4,
};

}  // namespace acplan::costmodel
