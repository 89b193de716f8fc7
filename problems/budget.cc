#include "problems/budget.h"

#include <algorithm>
#include <cmath>

namespace acplan::problems {

int64_t Budget::Bytes(int64_t unplanned_peak_bytes) const {
  if (kind == Kind::kBytes) return bytes;
  const double share_bytes =
      std::floor(share * static_cast<double>(unplanned_peak_bytes));
  return static_cast<int64_t>(std::clamp(share_bytes, 1.0, 0x1p62));
}

}  // namespace acplan::problems
