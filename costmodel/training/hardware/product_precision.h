#pragma once

namespace acplan::costmodel {

// The precision of the large products; all else is bf16 (fp16 alike).
enum class ProductPrecision {
  kBf16,
  kFp8Delayed,    // one scale a tensor, of the iteration before
  kFp8Current,    // one scale a tensor, of the tensor itself
  kFp8Rowwise,    // one scale a row
  kFp8Blockwise,  // one scale a block
  kMxfp8,         // one scale for 32 elements, in hardware
  kNvfp4,
};

}  // namespace acplan::costmodel
