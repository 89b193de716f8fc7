#include "graph/allocator/caching_allocator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/allocator/blocks.h"
#include "graph/allocator/expandable_segments.h"
#include "graph/allocator/reclaim.h"
#include "graph/allocator/set_up.h"

namespace acplan::graph {
namespace {

// Before, the first of several private pools that serve at once did.
constexpr PyTorchVersion kServesFromTheLast{2, 10};

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorConfig& config,
                                   int64_t device_bytes)
    : state_(config, device_bytes) {}

PoolId CachingAllocator::PoolOf(int64_t stream, bool is_small) {
  OwnerId owner = kDefaultOwner;
  if (!state_.active.empty()) {
    const bool is_first = state_.config.version < kServesFromTheLast;
    owner = (is_first ? state_.active.front() : state_.active.back()).owner;
  }
  const bool is_last = last_pool_ != PoolId{-1} &&
                       state_.At(last_pool_).stream == stream &&
                       state_.At(last_pool_).owner == owner;
  if (!is_last) {
    const auto [entry, is_new] = pool_of_stream_.try_emplace(
        {owner, stream}, PoolId{static_cast<int32_t>(state_.pools.size())});
    last_pool_ = entry->second;
    if (is_new) {
      Pool pool = {.is_small = true,
                   .owner = owner,
                   .stream = stream,
                   .page = kDevicePage};
      state_.pools.push_back(pool);
      pool.is_small = false;
      pool.page = state_.config.large_segment_bytes;
      state_.pools.push_back(pool);
    }
  }
  return PoolId{static_cast<int32_t>(last_pool_) + (is_small ? 0 : 1)};
}

void CachingAllocator::CountReserved() {
  counts_.reserved_bytes = state_.memory.reserved;
  counts_.peak_reserved_bytes =
      std::max(counts_.peak_reserved_bytes, counts_.reserved_bytes);
}

// Returns whether the device is as large as the reserved bytes with a new segment
// are.
bool CachingAllocator::HasMemoryFor(int64_t rounded_bytes) {
  const int64_t bytes =
      SegmentBytes(state_.config, rounded_bytes) + state_.memory.reserved;
  if (bytes <= state_.memory.total) return true;
  state_.memory.next_total = std::min(state_.memory.next_total, bytes);
  return false;
}

BlockId CachingAllocator::NewSegmentFor(PoolId pool, int64_t rounded_bytes) {
  const int64_t bytes = SegmentBytes(state_.config, rounded_bytes);
  if (!Allows(state_.memory, bytes)) return kNoBlock;
  if (state_.config.expandable_segments) {
    const BlockId block = MapBlock(state_, pool, rounded_bytes);
    CountReserved();
    return block;
  }
  const int64_t pages = (bytes + kDevicePage - 1) / kDevicePage * kDevicePage;
  if (!TakeBytes(state_.memory, pages)) return kNoBlock;
  state_.memory.reserved += bytes;
  ++state_.At(state_.At(pool).owner).segments;
  CountReserved();
  const SegmentId segment = NewSegment(state_, bytes, false);
  return NewBlock(state_, {.size = bytes,
                           .address = state_.At(segment).address,
                           .segment = segment,
                           .pool = pool});
}

BlockId CachingAllocator::Reclaimed(PoolId pool, int64_t rounded_bytes) {
  bool is_enough = false;
  reclaim_->oversize_bytes =
      ReleaseOversize(state_, pool, rounded_bytes, is_enough);
  if (is_enough) {
    const BlockId block = NewSegmentFor(pool, rounded_bytes);
    if (block != kNoBlock) return block;
  }
  if (IsCapturing(state_)) return kNoBlock;
  reclaim_->released_bytes = ReleaseCached(state_);
  reclaim_->is_retry = true;
  ++counts_.retries;
  return NewSegmentFor(pool, rounded_bytes);
}

BlockId CachingAllocator::Allocate(int64_t bytes, int64_t stream) {
  if (!state_.waiting.empty() && !IsCapturing(state_)) ReturnWaiting(state_);
  reclaim_.reset();
  const int64_t rounded = RoundedBytes(state_.config, bytes);
  const PoolId pool = PoolOf(stream, IsSmall(rounded));
  BlockId block = TakeBestFit(state_, pool, rounded);
  if (block == kNoBlock) {
    const int64_t collected =
        state_.config.memory_fraction < 1 &&
                state_.config.garbage_collection_threshold > 0
            ? CollectGarbage(state_)
            : 0;
    if (state_.config.refuses_early && state_.config.memory_fraction >= 1 &&
        !HasMemoryFor(rounded)) {
      return kNoBlock;
    }
    block = NewSegmentFor(pool, rounded);
    if (block == kNoBlock || collected > 0) {
      reclaim_ = Reclaim{.collected_bytes = collected};
    }
    if (block == kNoBlock) block = Reclaimed(pool, rounded);
    CountReserved();
  }
  if (block == kNoBlock) {
    ++counts_.failures;
    return kNoBlock;
  }
  block = SplitFor(state_, block, rounded);
  Block& allocated = state_.At(block);
  allocated.is_allocated = true;
  allocated.asked_bytes = bytes;
  counts_.allocated_bytes += allocated.size;
  counts_.peak_allocated_bytes =
      std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
  return block;
}

void CachingAllocator::Free(BlockId id) {
  Block& block = state_.At(id);
  block.is_allocated = false;
  counts_.allocated_bytes -= block.size;
  if (block.is_used_elsewhere) {
    state_.waiting.push_back(id);
  } else {
    ReturnBlock(state_, id);
  }
}

void CachingAllocator::RecordStream(BlockId id, int64_t stream) {
  Block& block = state_.At(id);
  if (state_.At(block.pool).stream != stream) block.is_used_elsewhere = true;
}

PoolOwner* CachingAllocator::OwnerNamed(int64_t name) {
  const auto owner = std::find_if(
      state_.owners.begin() + 1, state_.owners.end(),
      [&](const PoolOwner& o) { return !o.is_gone && o.name == name; });
  return owner == state_.owners.end() ? nullptr : &*owner;
}

bool CachingAllocator::IsActive(const PoolOwner& owner) const {
  return std::ranges::any_of(state_.active, [&](const ActivePool& active) {
    return &state_.At(active.owner) == &owner;
  });
}

bool CachingAllocator::BeginPool(int64_t name, bool is_capture) {
  PoolOwner* owner = OwnerNamed(name);
  if (owner == nullptr) {
    owner = &state_.owners.emplace_back();
    owner->name = name;
  } else {
    if (owner->users == 0 || IsActive(*owner)) return false;
    ++owner->users;
  }
  state_.active.push_back(
      {OwnerId{static_cast<int32_t>(owner - state_.owners.data())},
       is_capture});
  return true;
}

bool CachingAllocator::EndPool(int64_t name) {
  const auto active = std::ranges::find_if(
      state_.active,
      [&](const ActivePool& a) { return state_.At(a.owner).name == name; });
  if (active == state_.active.end()) return false;
  state_.active.erase(active);
  return true;
}

bool CachingAllocator::ReleasePool(int64_t name) {
  PoolOwner* owner = OwnerNamed(name);
  if (owner == nullptr || owner->users == 0 || IsActive(*owner)) return false;
  --owner->users;
  return true;
}

int64_t CachingAllocator::EmptyCache() {
  const int64_t bytes = ReleaseCached(state_);
  CountReserved();
  return bytes;
}

int64_t CachingAllocator::TakeNextDevice() {
  return std::exchange(state_.memory.next_total,
                       std::numeric_limits<int64_t>::max());
}

bool CachingAllocator::MoveTo(int64_t device_bytes) {
  const int64_t total = std::min(device_bytes, kLargestDevice);
  if (!GrowSegments(state_, total)) return false;
  state_.memory.total = total;
  state_.memory.allowed_bytes = AllowedBytes(state_.memory, total);
  return true;
}

std::vector<BlockId> CachingAllocator::AddSegment(const SegmentLayout& layout) {
  if (layout.private_pool) BeginPool(*layout.private_pool, false);
  const PoolId pool = PoolOf(layout.stream, layout.is_small);
  if (layout.private_pool) {
    EndPool(*layout.private_pool);
    // Its first use counts, the other segments do not.
    PoolOwner& owner = state_.At(state_.At(pool).owner);
    owner.users = 1;
  }
  const std::vector<BlockId> blocks = SetUpSegment(state_, pool, layout);
  for (const BlockId block : blocks) {
    if (block != kNoBlock) counts_.allocated_bytes += state_.At(block).size;
  }
  counts_.peak_allocated_bytes = counts_.allocated_bytes;
  CountReserved();
  return blocks;
}

void CachingAllocator::FitDevice() {
  if (state_.memory.used_bytes <= state_.memory.total) return;
  const int64_t bytes = state_.memory.used_bytes;
  state_.memory.next_total = std::min(state_.memory.next_total, bytes);
  EmptyCache();
  counts_.peak_reserved_bytes = counts_.reserved_bytes;
}

int64_t CachingAllocator::GiveBack(int64_t address) {
  const int64_t bytes = ReleaseAt(state_, address);
  CountReserved();
  return bytes;
}

Placement CachingAllocator::PlacementOf(BlockId id) const {
  const Block& block = state_.At(id);
  const Segment& segment = state_.At(block.segment);
  return {.segment = segment.number, .offset = block.address - segment.address};
}

}  // namespace acplan::graph
