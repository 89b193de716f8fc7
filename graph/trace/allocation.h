#pragma once

#include <cstdint>

namespace acplan::graph {

// CUDA's caching allocator hands out blocks of multiples of this many bytes, so
// that is what a storage takes (kMinBlockSize in PyTorch's
// CUDACachingAllocator).
inline constexpr int64_t kAllocationUnit = 512;

// Returns what a storage of `bytes` (at least 0) takes.
constexpr int64_t AllocatedBytes(int64_t bytes) {
  return (bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
}

// Returns the largest sum of allocations within `bytes` (at least 0).
constexpr int64_t WholeAllocations(int64_t bytes) {
  return bytes / kAllocationUnit * kAllocationUnit;
}

}  // namespace acplan::graph
