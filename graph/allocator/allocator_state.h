#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/device_memory.h"
#include "graph/allocator/free_list.h"

// The blocks, segments and pools of a caching allocator as plain values, for
// the functions that change them. Outside of this room, CachingAllocator is the
// way to use them.

namespace acplan::graph {

// The place of a segment in its table.
enum class SegmentId : int32_t {};

// The place of the blocks of one stream in one pool.
enum class PoolId : int32_t {};

// The place of the default pools (0) or of a private pool.
enum class OwnerId : int32_t {};

inline constexpr OwnerId kDefaultOwner{0};

// A piece of a segment. Neighbours in the segment are linked; free neighbours
// are one block, except that mapped and unmapped ones stay apart.
struct Block {
  int64_t size = 0;
  int64_t address = 0;
  int64_t asked_bytes = 0;
  int64_t serial = 0;  // how many blocks were made before it
  // The searches that the pool had seen when the block became free.
  int64_t birth = 0;
  BlockId previous = kNoBlock;
  BlockId next = kNoBlock;
  SegmentId segment{};
  PoolId pool{};
  bool is_allocated = false;
  // True where the address range has memory: always, in native segments.
  bool is_mapped = true;
  // True where another stream uses the block. Once freed, it waits until that
  // stream is done, and is neither allocated nor free.
  bool is_used_elsewhere = false;

  // Returns whether the entry is a block: it has no bytes if it is unused.
  bool Exists() const { return size > 0; }
  bool IsFree() const { return !is_allocated && !is_used_elsewhere; }
  bool IsSplit() const { return previous != kNoBlock || next != kNoBlock; }
};

// A range of addresses: what cudaMalloc returned, or one that is reserved and
// mapped page by page.
struct Segment {
  int64_t address = 0;
  int64_t size = 0;    // of an expandable segment, with what is not mapped
  int64_t number = 0;  // how many segments were made before it
  bool is_expandable = false;
};

// The small and the large pool that all share, or that CUDA graphs have for
// themselves.
struct PoolOwner {
  int64_t name = 0;  // of a private pool
  int users = 1;     // 0: its memory may be given back
  // Segments, and maps without unmaps, that the device gave it.
  int64_t segments = 0;
  bool is_gone = false;
  // The searches of its small pools, and of its large ones.
  int64_t searches[2] = {0, 0};
};

// A private pool that serves requests now.
struct ActivePool {
  OwnerId owner{};
  bool is_capture = false;
};

// The free blocks of one stream in one pool.
struct Pool {
  bool is_small = false;
  OwnerId owner{};
  int64_t stream = 0;
  int64_t page = 0;  // of its expandable segments
  FreeList free = {};
  std::set<std::pair<int64_t, BlockId>> unmapped = {};  // by address
};

// The record of what happened when a request found no free block and no memory.
struct Reclaim {
  int64_t event = 0;            // the number of the request
  int64_t collected_bytes = 0;  // by garbage collection
  int64_t oversize_bytes = 0;   // cached blocks above max_split_size_mb
  int64_t released_bytes = 0;   // all cached segments, or unmapped pages
  bool is_retry = false;        // counted in num_alloc_retries
};

struct AllocatorState {
  explicit AllocatorState(const AllocatorConfig& with, int64_t device_bytes)
      : config(with), memory(with, device_bytes) {}

  AllocatorConfig config;
  DeviceMemory memory;
  std::vector<Block> blocks;
  std::vector<BlockId> unused_blocks;
  std::vector<Segment> segments;
  std::vector<SegmentId> unused_segments;
  std::vector<Pool> pools;  // of a stream: the small one, then the large one
  std::vector<PoolOwner> owners = {PoolOwner{}};
  std::vector<ActivePool> active;  // in the order in which they began
  // Freed blocks that another stream still uses.
  std::vector<BlockId> waiting;
  int64_t next_address = kDevicePage;
  int64_t next_segment = 0;
  int64_t next_serial = 0;

  Block& At(BlockId id) { return blocks[static_cast<size_t>(id)]; }
  const Block& At(BlockId id) const { return blocks[static_cast<size_t>(id)]; }
  Segment& At(SegmentId id) { return segments[static_cast<size_t>(id)]; }
  const Segment& At(SegmentId id) const {
    return segments[static_cast<size_t>(id)];
  }
  PoolOwner& At(OwnerId id) { return owners[static_cast<size_t>(id)]; }
  const PoolOwner& At(OwnerId id) const {
    return owners[static_cast<size_t>(id)];
  }
  Pool& At(PoolId id) { return pools[static_cast<size_t>(id)]; }
  const Pool& At(PoolId id) const { return pools[static_cast<size_t>(id)]; }
};

}  // namespace acplan::graph
