#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace acplan::graph {

// A release of PyTorch whose allocator is simulated: 2.8 to 2.15.
struct PyTorchVersion {
  int major = 2;
  int minor = 15;

  auto operator<=>(const PyTorchVersion&) const = default;
};

inline constexpr PyTorchVersion kOldestAllocator{2, 8};
inline constexpr PyTorchVersion kNewestAllocator{2, 15};

// Parses "2.13" or "2.13.1". Throws InputError, naming `what`, for anything
// else, and for versions older or newer than those above.
PyTorchVersion ParsePyTorchVersion(std::string_view text,
                                   std::string_view what);

// The address space of an expandable segment: a share of the device's memory,
// or a number of bytes.
struct SegmentReserve {
  bool is_share = true;
  double value = 0;
};

// The options of PYTORCH_ALLOC_CONF that decide where a block lies and when a
// request fails.
struct AllocatorConfig {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  PyTorchVersion version = kNewestAllocator;
  bool expandable_segments = false;
  int64_t max_split_bytes = kUnlimited;
  int64_t max_non_split_rounding_bytes = int64_t{20} << 20;
  int64_t large_segment_bytes = int64_t{20} << 20;
  // The divisions between two powers of two to which a size is rounded: of
  // sizes below 2 MiB, below 4 MiB, ..., the last of 32 GiB and more. 0 and 1:
  // sizes are rounded to 512 bytes.
  std::array<int64_t, 16> roundup_divisions = {};
  double garbage_collection_threshold = 0;  // 0: never
  // The share of the device that the process may take.
  double memory_fraction = 1;
  // Refuses a request above that share before memory is freed for it.
  bool refuses_early = false;
  // Empty: 9/8 of the device.
  std::optional<SegmentReserve> segment_reserve = {};
};

// Parses the text of PYTORCH_ALLOC_CONF, "" and "native" for the defaults. As
// in PyTorch, later entries replace earlier ones, and spaces do not count.
// Options that do not concern blocks on the device (pinned memory, locks) are
// checked and left out. `what` names the flag or variable in errors.
//
// Throws InputError for an option that this version of PyTorch does not have
// (naming the nearest one, or the version that brought it), for a value that it
// refuses, and for the backend cudaMallocAsync, which is not simulated.
AllocatorConfig ParseAllocatorConfig(std::string_view text,
                                     std::string_view what,
                                     PyTorchVersion version = kNewestAllocator);

}  // namespace acplan::graph
