#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_state.h"
#include "graph/allocator/free_list.h"
#include "graph/allocator/segment_layout.h"

namespace acplan::graph {

// The bytes that an allocator counts, now and at most so far, and how often it
// ran short.
struct AllocatorCounts {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  int64_t retries = 0;   // num_alloc_retries
  int64_t failures = 0;  // num_ooms
};

// Where a block lies: the number of its segment, in the order in which segments
// were made, and the bytes before it in the segment.
struct Placement {
  int64_t segment = 0;
  int64_t offset = 0;

  bool operator==(const Placement&) const = default;
};

// PyTorch's CUDACachingAllocator on a device of its own: the same blocks,
// segments, bytes and failures for the same requests, by the rules of
// docs/allocator.md.
//
// The device hands out native segments in pages of 2 MiB at ever higher
// addresses, without fragmentation. Work on other streams (RecordStream) is
// done when the next request comes.
class CachingAllocator {
 public:
  // Begins with an empty device of `device_bytes`, all for this process.
  CachingAllocator(const AllocatorConfig& config, int64_t device_bytes);

  // Returns a block for `bytes`, which are above 0 and at most 2^50, or none:
  // out of memory, after all attempts to free some. The allocator stays usable.
  BlockId Allocate(int64_t bytes, int64_t stream = 0);

  // Frees a block of Allocate.
  void Free(BlockId block);

  // Notes that work on `stream` uses the block: Tensor.record_stream.
  void RecordStream(BlockId block, int64_t stream);

  // Serves requests from a private pool of this name until EndPool: that of a
  // CUDA graph which is captured, or of torch.cuda.use_mem_pool. It is made, or
  // has one more user. Returns whether that can be: it does not serve already, and
  // is not without users.
  bool BeginPool(int64_t name, bool is_capture);
  // Ends that. Returns whether the pool served.
  bool EndPool(int64_t name);
  // Takes a user off a pool: a graph is reset. Without users its memory can be
  // given back. Returns whether it had one and does not serve.
  bool ReleasePool(int64_t name);

  // Gives all cached memory back: torch.cuda.empty_cache. Returns the bytes.
  int64_t EmptyCache();

  // Adds a segment with its blocks, before any request. Returns a block for each
  // of the layout's, none for those that are not allocated.
  std::vector<BlockId> AddSegment(const SegmentLayout& layout);
  // Empties the cache if the added segments exceed the device.
  void FitDevice();

  // Puts the next new segment at this address.
  void PlaceNextSegment(int64_t address) { state_.next_address = address; }
  // Gives the free segment, or the free pages, with this address back. Returns
  // the bytes, 0 if there is nothing to give back.
  int64_t GiveBack(int64_t address);

  const AllocatorCounts& counts() const { return counts_; }
  Placement PlacementOf(BlockId block) const;

  // The bytes of the device that are in use.
  int64_t device_bytes() const { return state_.memory.used_bytes; }

  // The smallest larger device on which the run so far would have been another
  // one; the largest int64_t if there is none.
  int64_t next_device_bytes() const { return state_.memory.next_total; }
  // Returns the same for the run since the last call.
  int64_t TakeNextDevice();

  // Goes on on a larger device, on which the run so far would have been the same.
  // Returns false, and stays where it is, if a pool has several expandable segments: on
  // the larger device their addresses would be other ones.
  bool MoveTo(int64_t device_bytes);

  // The record of the last Allocate if it found neither a free block nor memory
  // for one at once.
  const std::optional<Reclaim>& reclaim() const { return reclaim_; }

  const AllocatorState& state() const { return state_; }

 private:
  PoolId PoolOf(int64_t stream, bool is_small);
  PoolOwner* OwnerNamed(int64_t name);
  bool IsActive(const PoolOwner& owner) const;
  bool HasMemoryFor(int64_t rounded_bytes);
  BlockId NewSegmentFor(PoolId pool, int64_t rounded_bytes);
  BlockId Reclaimed(PoolId pool, int64_t rounded_bytes);
  void CountReserved();

  AllocatorState state_;
  AllocatorCounts counts_;
  std::optional<Reclaim> reclaim_;
  std::map<std::pair<OwnerId, int64_t>, PoolId> pool_of_stream_;
  PoolId last_pool_{-1};  // the small one of the last request
};

}  // namespace acplan::graph
