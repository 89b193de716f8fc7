#include "graph/allocator/caching_allocator.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "graph/allocator/blocks.h"
#include "tests/graph/mebibytes.h"

// One test a rule of docs/allocator.md, with numbers that can be added up.

namespace acplan::graph {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kPlenty = int64_t{80} << 30;

CachingAllocator Allocator(const std::string& settings,
                           int64_t device_bytes = kPlenty, int minor = 15) {
  return {ParseAllocatorConfig(settings, "settings", {2, minor}), device_bytes};
}

int64_t RoundedBySettings(const std::string& settings, int64_t bytes) {
  return RoundedBytes(ParseAllocatorConfig(settings, "settings"), bytes);
}

TEST(CachingAllocator, RoundsTo512Bytes) {
  EXPECT_EQ(RoundedBySettings("", 1), 512);
  EXPECT_EQ(RoundedBySettings("", 512), 512);
  EXPECT_EQ(RoundedBySettings("", 513), 1024);
}

TEST(CachingAllocator, RoundsToDivisionsOfAPowerOfTwo) {
  const char settings[] = "roundup_power2_divisions:4";
  EXPECT_EQ(RoundedBySettings(settings, 5 * kMiB + 1), 6 * kMiB);
  EXPECT_EQ(RoundedBySettings(settings, 5 * kMiB), 5 * kMiB);
  EXPECT_EQ(RoundedBySettings(settings, 8 * kMiB), 8 * kMiB);
  // A division would have less than 512 bytes.
  EXPECT_EQ(RoundedBySettings(settings, 2048), 2048);
  EXPECT_EQ(RoundedBySettings(settings, 1500), 1536);
  EXPECT_EQ(
      RoundedBySettings("roundup_power2_divisions:[1:8,2:2,>:1]", 3 * kMiB + 1),
      4 * kMiB);
}

TEST(CachingAllocator, MakesSegmentsOfThreeKinds) {
  CachingAllocator allocator = Allocator("");
  allocator.Allocate(kMiB);  // the small pool's 2 MiB
  EXPECT_EQ(allocator.counts().reserved_bytes, 2 * kMiB);
  allocator.Allocate(kMiB + 1);  // the large pool's 20 MiB
  EXPECT_EQ(allocator.counts().reserved_bytes, 22 * kMiB);
  allocator.Allocate(19 * kMiB);  // does not fit there: in steps of 2 MiB
  EXPECT_EQ(allocator.counts().reserved_bytes, 42 * kMiB);
}

TEST(CachingAllocator, LargeSegmentsHaveTheirOwnSize) {
  CachingAllocator allocator = Allocator("large_segment_size_mb:40");
  allocator.Allocate(2 * kMiB);
  EXPECT_EQ(allocator.counts().reserved_bytes, 40 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestFreeBlockThenTheLowestAddress) {
  CachingAllocator allocator = Allocator("");
  const BlockId large = allocator.Allocate(40 * kMiB);
  const BlockId first = allocator.Allocate(30 * kMiB);
  const BlockId second = allocator.Allocate(30 * kMiB);
  allocator.Free(second);
  allocator.Free(first);
  allocator.Free(large);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)),
            (Placement{1, 0}));
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)),
            (Placement{2, 0}));
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)),
            (Placement{0, 0}));
}

TEST(CachingAllocator, PyTorch212PrefersTheOlderBlock) {
  const auto place = [](int minor) {
    CachingAllocator allocator = Allocator("", kPlenty, minor);
    const BlockId first = allocator.Allocate(20 * kMiB);
    const BlockId second = allocator.Allocate(20 * kMiB);
    allocator.Free(second);
    allocator.Free(first);
    // Splitting the first segment makes its block anew.
    allocator.Free(allocator.Allocate(2 * kMiB));
    return allocator.PlacementOf(allocator.Allocate(20 * kMiB));
  };
  EXPECT_EQ(place(12), (Placement{1, 0}));
  EXPECT_EQ(place(11), (Placement{0, 0}));
  EXPECT_EQ(place(13), (Placement{0, 0}));
}

TEST(CachingAllocator, SplitsFromTheSmallPoolAsOf512Bytes) {
  CachingAllocator allocator = Allocator("");
  allocator.Allocate(kMiB);
  allocator.Allocate(kMiB - 512);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(1)),
            (Placement{0, 2 * kMiB - 512}));
  EXPECT_EQ(allocator.counts().allocated_bytes, 2 * kMiB);
}

TEST(CachingAllocator, SplitsFromTheLargePoolAboveOneMebibyte) {
  CachingAllocator allocator = Allocator("");
  // 1 MiB would be left: the block has it all.
  allocator.Allocate(19 * kMiB);
  EXPECT_EQ(allocator.counts().allocated_bytes, 20 * kMiB);
  allocator.Allocate(21 * kMiB);
  EXPECT_EQ(allocator.counts().allocated_bytes, 42 * kMiB);
  // More than 1 MiB is left.
  CachingAllocator other = Allocator("");
  other.Allocate(9 * kMiB);
  EXPECT_EQ(other.counts().allocated_bytes, 9 * kMiB);
}

TEST(CachingAllocator, MergesFreeNeighbours) {
  CachingAllocator allocator = Allocator("");
  const BlockId a = allocator.Allocate(4 * kMiB);
  const BlockId b = allocator.Allocate(4 * kMiB);
  const BlockId c = allocator.Allocate(4 * kMiB);
  allocator.Free(a);
  allocator.Free(c);
  allocator.Free(b);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(20 * kMiB)),
            (Placement{0, 0}));
}

TEST(CachingAllocator, KeepsStreamsApart) {
  CachingAllocator allocator = Allocator("");
  allocator.Free(allocator.Allocate(30 * kMiB, 1));
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB, 2)).segment, 1);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB, 1)).segment, 0);
}

TEST(CachingAllocator, AFreedBlockWaitsForOtherStreamsUntilTheNextRequest) {
  CachingAllocator allocator = Allocator("");
  const BlockId block = allocator.Allocate(30 * kMiB);
  allocator.RecordStream(block, 7);
  allocator.Free(block);
  EXPECT_EQ(allocator.counts().allocated_bytes, 0);
  EXPECT_EQ(allocator.state().waiting.size(), 1);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)).segment, 0);
}

TEST(CachingAllocator, ReleasesAllAndRetriesBeforeItFails) {
  CachingAllocator allocator = Allocator("", 64 * kMiB);
  allocator.Free(allocator.Allocate(40 * kMiB));
  EXPECT_NE(allocator.Allocate(50 * kMiB), kNoBlock);
  EXPECT_EQ(allocator.counts().retries, 1);
  ASSERT_TRUE(allocator.reclaim());
  EXPECT_EQ(allocator.reclaim()->released_bytes, 40 * kMiB);
  EXPECT_TRUE(allocator.reclaim()->is_retry);
  EXPECT_EQ(allocator.Allocate(30 * kMiB), kNoBlock);
  EXPECT_EQ(allocator.counts().failures, 1);
  EXPECT_EQ(allocator.counts().allocated_bytes, 50 * kMiB);
}

TEST(CachingAllocator, ReleasesOnlySegmentsThatAreWhollyFree) {
  CachingAllocator allocator = Allocator("", 64 * kMiB);
  const BlockId a = allocator.Allocate(5 * kMiB);
  allocator.Allocate(5 * kMiB);
  allocator.Free(a);
  EXPECT_EQ(allocator.EmptyCache(), 0);
  EXPECT_EQ(allocator.counts().reserved_bytes, 20 * kMiB);
}

TEST(CachingAllocator, KeepsOversizeBlocksWhole) {
  CachingAllocator allocator = Allocator("max_split_size_mb:30");
  allocator.Free(allocator.Allocate(60 * kMiB));
  // Smaller requests do not get it, nor does one that it exceeds by 20 MiB.
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(25 * kMiB)).segment, 1);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(40 * kMiB)).segment, 2);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(42 * kMiB)).segment, 0);
  EXPECT_EQ(allocator.counts().allocated_bytes, (26 + 40 + 60) * kMiB);
}

TEST(CachingAllocator, RoundingBoundsWhatAnOversizeBlockMayExceed) {
  CachingAllocator allocator =
      Allocator("max_split_size_mb:30,max_non_split_rounding_mb:25");
  allocator.Free(allocator.Allocate(60 * kMiB));
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(36 * kMiB)).segment, 0);
}

TEST(CachingAllocator, ReleasesOversizeBlocksBeforeAllOthers) {
  CachingAllocator allocator = Allocator("max_split_size_mb:30", 100 * kMiB);
  const BlockId a = allocator.Allocate(40 * kMiB);
  const BlockId b = allocator.Allocate(32 * kMiB);
  allocator.Free(a);
  allocator.Free(b);
  allocator.Free(allocator.Allocate(20 * kMiB));
  EXPECT_NE(allocator.Allocate(60 * kMiB), kNoBlock);
  ASSERT_TRUE(allocator.reclaim());
  EXPECT_EQ(allocator.reclaim()->oversize_bytes, 72 * kMiB);
  EXPECT_EQ(allocator.reclaim()->released_bytes, 0);
  EXPECT_EQ(allocator.counts().retries, 0);
}

TEST(CachingAllocator, CollectsOldSegmentsAboveTheThreshold) {
  const char settings[] =
      "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5";
  CachingAllocator allocator = Allocator(settings, 200 * kMiB);
  allocator.Free(allocator.Allocate(40 * kMiB));
  allocator.Free(allocator.Allocate(46 * kMiB));
  EXPECT_EQ(allocator.counts().reserved_bytes, 86 * kMiB);
  // At the third search the segments are 2 and 1 searches old, 1.5 on average.
  allocator.Allocate(50 * kMiB);
  ASSERT_TRUE(allocator.reclaim());
  EXPECT_EQ(allocator.reclaim()->collected_bytes, 40 * kMiB);
  EXPECT_EQ(allocator.counts().retries, 0);
}

TEST(CachingAllocator, CollectsNothingWithoutAFraction) {
  CachingAllocator allocator =
      Allocator("garbage_collection_threshold:0.5", 200 * kMiB);
  allocator.Free(allocator.Allocate(150 * kMiB));
  allocator.Allocate(40 * kMiB, 1);
  EXPECT_FALSE(allocator.reclaim());
}

TEST(CachingAllocator, TheFractionBoundsReservedBytes) {
  CachingAllocator allocator =
      Allocator("per_process_memory_fraction:0.5", 100 * kMiB);
  EXPECT_NE(allocator.Allocate(40 * kMiB), kNoBlock);
  EXPECT_EQ(allocator.Allocate(12 * kMiB), kNoBlock);
}

// .7 of these devices are 1.1 and .4 bytes less than 40 MiB, and .3 bytes more.
TEST(CachingAllocator, TheFractionIsOfWholeBytes) {
  const auto serves = [](int minor, int64_t device) {
    CachingAllocator allocator(
        ParseAllocatorConfig("per_process_memory_fraction:0.7", "",
                             PyTorchVersion{2, minor}),
        device);
    return allocator.Allocate(40 * kMiB) != kNoBlock;
  };
  EXPECT_FALSE(serves(11, 59'918'628));
  EXPECT_TRUE(serves(11, 59'918'629));
  EXPECT_FALSE(serves(13, 59'918'627));
  EXPECT_TRUE(serves(13, 59'918'628));
}

TEST(CachingAllocator, RefusesEarlyWithoutARetry) {
  CachingAllocator allocator =
      Allocator("throw_on_cudamalloc_oom:True", 64 * kMiB);
  allocator.Free(allocator.Allocate(40 * kMiB));
  EXPECT_EQ(allocator.Allocate(50 * kMiB), kNoBlock);
  EXPECT_EQ(allocator.counts().retries, 0);
  EXPECT_EQ(allocator.counts().reserved_bytes, 40 * kMiB);
}

// --- Private pools ---

TEST(PrivatePools, HaveTheirOwnSegmentsUntilTheyAreReleased) {
  CachingAllocator allocator = Allocator("");
  allocator.Free(allocator.Allocate(30 * kMiB));
  EXPECT_TRUE(allocator.BeginPool(5, false));
  EXPECT_FALSE(allocator.BeginPool(5, false));
  allocator.Free(allocator.Allocate(30 * kMiB));
  EXPECT_TRUE(allocator.EndPool(5));
  EXPECT_FALSE(allocator.EndPool(5));
  EXPECT_EQ(allocator.counts().reserved_bytes, 60 * kMiB);
  EXPECT_EQ(allocator.EmptyCache(), 30 * kMiB);
  EXPECT_TRUE(allocator.ReleasePool(5));
  EXPECT_FALSE(allocator.ReleasePool(5));
  EXPECT_EQ(allocator.EmptyCache(), 30 * kMiB);
}

TEST(PrivatePools, ACaptureEmptiesNoCache) {
  for (const int minor : {12, 13}) {
    for (const bool is_capture : {false, true}) {
      CachingAllocator allocator = Allocator("", 64 * kMiB, minor);
      allocator.Free(allocator.Allocate(40 * kMiB));
      allocator.BeginPool(5, is_capture);
      const bool fits = allocator.Allocate(40 * kMiB) != kNoBlock;
      // Up to 2.12, all pools are taken for captures.
      EXPECT_EQ(fits, minor == 13 && !is_capture);
      EXPECT_EQ(allocator.counts().retries, fits ? 1 : 0);
    }
  }
}

TEST(PrivatePools, BlocksOfOtherStreamsWaitForTheEndOfACapture) {
  CachingAllocator allocator = Allocator("");
  const BlockId block = allocator.Allocate(30 * kMiB);
  allocator.RecordStream(block, 7);
  allocator.BeginPool(5, true);
  allocator.Free(block);
  allocator.Allocate(kMiB);
  EXPECT_EQ(allocator.state().waiting.size(), 1);
  allocator.EndPool(5);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)).segment, 0);
}

TEST(PrivatePools, TheLastOneServes) {
  const auto segment = [](int minor) {
    CachingAllocator allocator = Allocator("", kPlenty, minor);
    allocator.BeginPool(1, false);
    allocator.Allocate(5 * kMiB);
    allocator.BeginPool(2, false);
    return allocator.PlacementOf(allocator.Allocate(5 * kMiB)).segment;
  };
  EXPECT_EQ(segment(9), 0);
  EXPECT_EQ(segment(10), 1);
}

// --- Expandable segments ---

TEST(ExpandableSegments, GrowOneSegmentAPoolAndStreamByPages) {
  CachingAllocator allocator = Allocator("expandable_segments:True");
  allocator.Allocate(5 * kMiB);
  EXPECT_EQ(allocator.counts().reserved_bytes, 20 * kMiB);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)),
            (Placement{0, 5 * kMiB}));
  EXPECT_EQ(allocator.counts().reserved_bytes, 40 * kMiB);
  EXPECT_EQ(allocator.counts().allocated_bytes, 35 * kMiB);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(100)), (Placement{1, 0}));
  EXPECT_EQ(allocator.counts().reserved_bytes, 42 * kMiB);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(2 * kMiB, 3)),
            (Placement{2, 0}));
}

TEST(ExpandableSegments, SplitAsOf512Bytes) {
  CachingAllocator allocator = Allocator("expandable_segments:True");
  allocator.Allocate(20 * kMiB - 512);
  EXPECT_EQ(allocator.counts().allocated_bytes, 20 * kMiB - 512);
}

TEST(ExpandableSegments, FitBestBySizeThatABlockCanGrowTo) {
  CachingAllocator allocator = Allocator("expandable_segments:True");
  const BlockId hole = allocator.Allocate(12 * kMiB);
  allocator.Allocate(kMiB + 512);
  // The last free block is smaller than the hole but can grow.
  allocator.Free(hole);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(5 * kMiB)),
            (Placement{0, 0}));
}

TEST(ExpandableSegments, UnmapWholeFreePagesWhenMemoryIsShort) {
  CachingAllocator allocator =
      Allocator("expandable_segments:True", 100 * kMiB);
  const BlockId a = allocator.Allocate(45 * kMiB);
  allocator.Allocate(10 * kMiB);
  EXPECT_EQ(allocator.counts().reserved_bytes, 60 * kMiB);
  allocator.Free(a);
  // Pages 0 and 1 go; page 2 has 5 MiB of the hole. The block lies behind it.
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(60 * kMiB)),
            (Placement{0, 55 * kMiB}));
  ASSERT_TRUE(allocator.reclaim());
  EXPECT_EQ(allocator.reclaim()->released_bytes, 40 * kMiB);
  EXPECT_EQ(allocator.counts().reserved_bytes, 80 * kMiB);
  EXPECT_EQ(allocator.counts().retries, 1);
}

TEST(ExpandableSegments, MapGapsAtLowAddressesFirst) {
  CachingAllocator allocator = Allocator("expandable_segments:True");
  const BlockId a = allocator.Allocate(40 * kMiB);
  allocator.Allocate(10 * kMiB);
  allocator.Free(a);
  EXPECT_EQ(allocator.EmptyCache(), 40 * kMiB);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(30 * kMiB)),
            (Placement{0, 0}));
}

TEST(ExpandableSegments, DropSegmentsWithoutAPage) {
  CachingAllocator allocator = Allocator("expandable_segments:True");
  allocator.Free(allocator.Allocate(40 * kMiB));
  EXPECT_EQ(allocator.EmptyCache(), 40 * kMiB);
  EXPECT_EQ(allocator.device_bytes(), 0);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(kMiB + 1)).segment, 1);
}

TEST(ExpandableSegments, Before215ASegmentTooShortStays) {
  const auto segment = [](int minor) {
    CachingAllocator allocator =
        Allocator("expandable_segments:True", 64 * kMiB, minor);
    EXPECT_EQ(allocator.Allocate(200 * kMiB), kNoBlock);
    return allocator.PlacementOf(allocator.Allocate(2 * kMiB)).segment;
  };
  EXPECT_EQ(segment(14), 0);
  EXPECT_EQ(segment(15), 2);
}

TEST(ExpandableSegments, AReserveBoundsWhatABlockCanHave) {
  CachingAllocator allocator = Allocator(
      "expandable_segments:True,expandable_segments_reserve:0.25", 400 * kMiB);
  EXPECT_EQ(allocator.Allocate(110 * kMiB), kNoBlock);
  EXPECT_NE(allocator.Allocate(90 * kMiB), kNoBlock);
  EXPECT_EQ(allocator.PlacementOf(allocator.Allocate(90 * kMiB)).offset, 0);
}

}  // namespace
}  // namespace acplan::graph
