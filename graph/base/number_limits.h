#pragma once

#include <cstdint>

namespace acplan::graph {

// The largest numbers that files may hold. JSON's numbers are doubles, of which
// every integer up to this one is exact; so are sizes in bytes.
inline constexpr int64_t kMostExactInteger = int64_t{1} << 53;
// Sums of sizes, which must not overflow.
inline constexpr int64_t kMostTotalBytes = int64_t{1} << 62;
// All other numbers: milliseconds, ratios.
inline constexpr double kMostNumber = 1e18;

}  // namespace acplan::graph
