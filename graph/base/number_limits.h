#pragma once

#include <cstdint>

namespace acplan::graph {

// The largest numbers that files may hold. JSON's numbers are doubles, which represent
// every integer up to this one exactly. Sizes in bytes have the same limit.
inline constexpr int64_t kMostExactInteger = int64_t{1} << 53;
// The limit of sums of sizes, which must not overflow.
inline constexpr int64_t kMostTotalBytes = int64_t{1} << 62;
// The limit of all other numbers: milliseconds, ratios.
inline constexpr double kMostNumber = 1e18;

}  // namespace acplan::graph
