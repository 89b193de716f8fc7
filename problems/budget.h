#pragma once

#include <cstdint>

namespace acplan::problems {

// A budget: bytes, a share of what is used without a plan, or the least that any plan
// needs.
struct Budget {
  enum class Kind { kBytes, kShare, kMinimum };
  Kind kind = Kind::kBytes;
  int64_t bytes = 0;
  double share = 0;  // above 0

  // Returns the bytes of a budget that is not kMinimum, from 1 to 4 EiB.
  int64_t Bytes(int64_t unplanned_peak_bytes) const;
};

}  // namespace acplan::problems
