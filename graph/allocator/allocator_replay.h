#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/caching_allocator.h"

namespace acplan::graph {

// Runs events one by one on an allocator of its own.
class EventRunner {
 public:
  // Sets up the segments that are there before the first event. If the device
  // is too small for all of them, those without an allocated block go first.
  // Keeps a reference to `events`.
  EventRunner(const AllocatorEvents& events, const AllocatorConfig& config,
              int64_t device_bytes);

  // Runs the event at this place of the list. Returns whether it does not fail;
  // `block` is what it allocated, if anything.
  bool Run(size_t index, BlockId& block);

  const CachingAllocator& allocator() const { return allocator_; }

  // Returns CachingAllocator::next_device_bytes since the last call.
  int64_t TakeNextDevice() { return allocator_.TakeNextDevice(); }

  // Goes on on a larger device, as CachingAllocator::MoveTo.
  bool MoveTo(int64_t device_bytes) { return allocator_.MoveTo(device_bytes); }

  // Returns the block that lives now for this place among the blocks of the
  // list, or none.
  BlockId BlockAt(int32_t place) const {
    return blocks_[static_cast<size_t>(place)];
  }

  // The places in the list of the blocks that are allocated, indexed by block of the
  // allocator. Entries of all other blocks mean nothing.
  const std::vector<int32_t>& places() const { return places_; }

 private:
  BlockId& At(const AllocatorEvent& event);
  void SetPlace(BlockId block, int32_t place);

  const AllocatorEvents& events_;
  CachingAllocator allocator_;
  std::vector<BlockId> blocks_;
  std::vector<int32_t> places_;
};

// A segment with memory, or a mapped range of an expandable one.
struct SegmentUse {
  int64_t number = 0;  // of its segment
  int64_t offset = 0;  // in its segment
  int64_t stream = 0;
  std::optional<int64_t> private_pool = {};
  bool is_small = false;
  bool is_expandable = false;
  int64_t bytes = 0;
  int64_t allocated_bytes = 0;
  int64_t largest_free_bytes = 0;
  int64_t blocks = 0;  // that are allocated
};

// Returns what lies on the device, by number and offset.
std::vector<SegmentUse> SegmentsOf(const CachingAllocator& allocator);

// The request at which a run ends.
struct ReplayFailure {
  int64_t event = 0;
  int64_t bytes = 0;
  int64_t stream = 0;
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;  // once all that can be is given back
  int64_t free_bytes = 0;      // of the device
};

// A run on one device, to its end or to its first failure.
struct Replay {
  AllocatorCounts counts;
  std::vector<Reclaim> reclaims;
  std::optional<ReplayFailure> failure;
  // The first event after which the peak of the reserved bytes is reached.
  int64_t peak_event = -1;
  // CachingAllocator::next_device_bytes.
  int64_t next_device_bytes = 0;
};

// Runs the events. Calls `goes_on`, if there is one, after each of them with its
// place in the list, the runner and its block if it allocated one; where that
// returns false, the run ends there.
Replay ReplayEvents(const AllocatorEvents& events,
                    const AllocatorConfig& config, int64_t device_bytes,
                    const std::function<bool(size_t, const EventRunner&,
                                             BlockId)>& goes_on = nullptr);

// Returns the segments at the peak of the reserved bytes, or where the run
// fails.
std::vector<SegmentUse> SegmentsAtPeak(const AllocatorEvents& events,
                                       const AllocatorConfig& config,
                                       int64_t device_bytes,
                                       const Replay& replay);

}  // namespace acplan::graph
