#include "graph/allocator/device_memory.h"

#include <algorithm>
#include <cmath>

namespace acplan::graph {
namespace {

constexpr PyTorchVersion kRoundsFraction{2, 13};

// Notes the smallest device above this one for which `is_enough`, which is
// monotone and does not hold for this one.
template <typename Predicate>
void NoteDevice(DeviceMemory& memory, Predicate is_enough) {
  int64_t low = memory.total;
  int64_t high = std::min(memory.next_total, kLargestDevice + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (is_enough(middle) ? high : low) = middle;
  }
  if (high <= kLargestDevice) {
    memory.next_total = std::min(memory.next_total, high);
  }
}

}  // namespace

DeviceMemory::DeviceMemory(const AllocatorConfig& config, int64_t total_bytes)
    : total(std::min(total_bytes, kLargestDevice)),
      memory_fraction(config.memory_fraction),
      rounds_fraction(config.version >= kRoundsFraction),
      collection_threshold(config.garbage_collection_threshold),
      segment_reserve(config.segment_reserve) {
  allowed_bytes = AllowedBytes(*this, total);
}

int64_t AllowedBytes(const DeviceMemory& memory, int64_t total) {
  if (memory.memory_fraction >= 1) return std::numeric_limits<int64_t>::max();
  const double bytes = memory.memory_fraction * static_cast<double>(total);
  return memory.rounds_fraction ? std::llround(bytes)
                                : static_cast<int64_t>(bytes);
}

int64_t CollectionBytes(const DeviceMemory& memory, int64_t total) {
  return static_cast<int64_t>(memory.collection_threshold *
                              static_cast<double>(AllowedBytes(memory, total)));
}

int64_t ReserveBytes(const DeviceMemory& memory, int64_t page, int64_t total) {
  int64_t bytes = total + total / 8;
  if (memory.segment_reserve) {
    const SegmentReserve& reserve = *memory.segment_reserve;
    const double asked_bytes =
        reserve.value * (reserve.is_share ? static_cast<double>(total) : 1.0);
    if (asked_bytes < static_cast<double>(bytes)) {
      bytes = static_cast<int64_t>(asked_bytes);
    }
  }
  return (bytes + page - 1) / page * page;
}

bool TakeBytes(DeviceMemory& memory, int64_t bytes) {
  if (memory.used_bytes + bytes > memory.total) {
    memory.next_total = std::min(memory.next_total, memory.used_bytes + bytes);
    return false;
  }
  memory.used_bytes += bytes;
  return true;
}

bool Allows(DeviceMemory& memory, int64_t bytes) {
  if (bytes <= memory.allowed_bytes - memory.reserved) return true;
  NoteDevice(memory, [&](int64_t total) {
    return bytes <= AllowedBytes(memory, total) - memory.reserved;
  });
  return false;
}

bool IsAboveCollection(DeviceMemory& memory) {
  if (memory.reserved <= CollectionBytes(memory, memory.total)) return false;
  NoteDevice(memory, [&](int64_t total) {
    return memory.reserved <= CollectionBytes(memory, total);
  });
  return true;
}

void NoteReserve(DeviceMemory& memory, int64_t page, int64_t bytes) {
  if (ReserveBytes(memory, page, memory.total) >= bytes) return;
  NoteDevice(memory, [&](int64_t total) {
    return ReserveBytes(memory, page, total) >= bytes;
  });
}

}  // namespace acplan::graph
