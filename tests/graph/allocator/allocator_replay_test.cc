#include "graph/allocator/allocator_replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/allocator/resumed_runs.h"
#include "tests/graph/mebibytes.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;

AllocatorConfig Config(const std::string& settings) {
  return ParseAllocatorConfig(settings, "settings");
}

AllocatorEvents Events(const std::string& text) {
  return ParseAllocatorEvents(text, "events");
}

TEST(AllocatorReplay, EndsAtTheFirstFailure) {
  const AllocatorEvents events =
      Events("a 1 31457280\nf 1\na 2 41943040\na 3 31457280\ne\n");
  const Replay replay = ReplayEvents(events, Config(""), 60 * kMiB);
  ASSERT_TRUE(replay.failure);
  EXPECT_EQ(replay.failure->event, 3);
  EXPECT_EQ(replay.failure->bytes, 30 * kMiB);
  EXPECT_EQ(replay.failure->allocated_bytes, 40 * kMiB);
  EXPECT_EQ(replay.failure->reserved_bytes, 40 * kMiB);
  EXPECT_EQ(replay.failure->free_bytes, 20 * kMiB);
  EXPECT_EQ(replay.counts.retries, 2);
  ASSERT_EQ(replay.reclaims.size(), 2);
  EXPECT_EQ(replay.reclaims[0].event, 2);
  EXPECT_EQ(replay.reclaims[0].released_bytes, 30 * kMiB);
  EXPECT_EQ(replay.peak_event, 2);
}

TEST(AllocatorReplay, SkipsBlocksOfNoBytes) {
  const Replay replay =
      ReplayEvents(Events("a 1 0\ns 1 2\nf 1\n"), Config(""), kLargestDevice);
  EXPECT_EQ(replay.counts.peak_reserved_bytes, 0);
  EXPECT_FALSE(replay.failure);
}

TEST(AllocatorReplay, TellsTheSegmentsAtThePeak) {
  const AllocatorEvents events =
      Events("a 1 5242880\na 2 100 4\nf 1\na 3 62914560\nf 3\nf 2\n");
  const AllocatorConfig config = Config("");
  const Replay replay = ReplayEvents(events, config, kLargestDevice);
  EXPECT_EQ(replay.peak_event, 3);
  const std::vector<SegmentUse> segments =
      SegmentsAtPeak(events, config, kLargestDevice, replay);
  ASSERT_EQ(segments.size(), 3);
  EXPECT_EQ(segments[0].bytes, 20 * kMiB);
  EXPECT_EQ(segments[0].allocated_bytes, 0);
  EXPECT_EQ(segments[0].largest_free_bytes, 20 * kMiB);
  EXPECT_EQ(segments[1].stream, 4);
  EXPECT_TRUE(segments[1].is_small);
  EXPECT_EQ(segments[1].allocated_bytes, 512);
  EXPECT_EQ(segments[1].blocks, 1);
  EXPECT_EQ(segments[2].allocated_bytes, 60 * kMiB);
}

TEST(AllocatorReplay, MappedRangesOfAnExpandableSegmentStandApart) {
  const AllocatorEvents events = Events("a 1 41943040\na 2 10485760\nf 1\ne\n");
  EventRunner runner(events, Config("expandable_segments:True"),
                     kLargestDevice);
  BlockId block = kNoBlock;
  for (size_t k = 0; k < events.events.size(); ++k) runner.Run(k, block);
  const std::vector<SegmentUse> segments = SegmentsOf(runner.allocator());
  ASSERT_EQ(segments.size(), 1);
  EXPECT_EQ(segments[0].offset, 40 * kMiB);
  EXPECT_EQ(segments[0].bytes, 20 * kMiB);
  EXPECT_TRUE(segments[0].is_expandable);
}

// --- The least device ---

// Returns random events, few enough to try every device.
AllocatorEvents RandomEvents(std::mt19937_64& random) {
  std::string text;
  std::vector<int> live;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t most = 4 + below(40);
  for (int id = 0; id < 60; ++id) {
    if (!live.empty() && below(5) < 2) {
      const auto at = static_cast<size_t>(below(std::ssize(live)));
      text += "f " + std::to_string(live[at]) + "\n";
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      const int64_t bytes =
          below(2) == 0 ? (1 + below(most)) * kMiB : 1 + below(3 * kMiB);
      text += "a " + std::to_string(id) + " " + std::to_string(bytes) + " " +
              std::to_string(below(4) / 3) + "\n";
      live.push_back(id);
    }
  }
  return Events(text);
}

constexpr const char* kSettings[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:25",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
    "expandable_segments:True,expandable_segments_reserve:0.6",
    "throw_on_cudamalloc_oom:True",
    "large_segment_size_mb:31,per_process_memory_fraction:0.5",
};

TEST(LeastDevice, NoSmallerDeviceDoes) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 70; ++round) {
    const AllocatorConfig config = Config(kSettings[round % 7]);
    const AllocatorEvents events = RandomEvents(random);
    const auto least = FindLeastDevice(events, config);
    ASSERT_TRUE(least);
    EXPECT_TRUE(least->is_least);
    EXPECT_FALSE(ReplayEvents(events, config, least->bytes).failure);
    for (int64_t device = least->bytes - 1; device > 0;
         device -= kMiB / 2 + 3) {
      ASSERT_TRUE(ReplayEvents(events, config, device).failure)
          << kSettings[round % 7] << ", " << device << " of " << least->bytes;
    }
  }
}

// Returns random events on two streams, with record_stream, empty_cache and a private
// pool. Blocks of few sizes come and go, so that runs on two devices often meet again.
AllocatorEvents EventsOfAllKinds(std::mt19937_64& random) {
  std::string text;
  std::vector<int> live;
  bool is_in_pool = false;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t sizes = 2 + below(4);
  for (int id = 0; id < 160; ++id) {
    const int64_t kind = below(100);
    if (kind < 45 && !live.empty()) {
      const size_t at = kind < 20
                            ? live.size() - 1
                            : static_cast<size_t>(below(std::ssize(live)));
      text += "f " + std::to_string(live[at]) + "\n";
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (kind < 47 && !live.empty()) {
      text += "s " + std::to_string(live.back()) + " 1\n";
    } else if (kind == 47) {
      text += "e\n";
    } else if (kind == 48) {
      text += is_in_pool ? "q 1\n" : "p 1\n";
      is_in_pool = !is_in_pool;
    } else {
      const int64_t bytes =
          (1 + below(sizes)) * (below(2) == 0 ? 7 * kMiB : 300'000);
      text += "a " + std::to_string(id) + " " + std::to_string(bytes) + " " +
              std::to_string(below(8) / 7) + "\n";
      live.push_back(id);
    }
  }
  return Events(text);
}

// Every run that begins and ends where it differs from the one before is compared
// with a whole run, on each device up to the least.
TEST(LeastDevice, ResumedRunsAnswerAsWholeOnes) {
  std::mt19937_64 random(9);
  int64_t events_of_all = 0, events_run = 0;
  for (int round = 0; round < Repetitions(400); ++round) {
    const AllocatorConfig config =
        round % 8 == 7 ? ParseAllocatorConfig("", "", PyTorchVersion{2, 12})
                       : Config(kSettings[round % 8]);
    const AllocatorEvents events =
        round % 3 == 0 ? RandomEvents(random) : EventsOfAllKinds(random);
    const RunEnds no_ends;
    ResumedRuns runs(events, config, no_ends, 1 + random() % 12);
    int64_t device = MostBlockBytes(events, config);
    while (device <= kLargestDevice) {
      SCOPED_TRACE(device);
      const Replay whole = ReplayEvents(events, config, device);
      const DeviceTrial trial = runs.Run(device);
      ASSERT_EQ(trial.fits, !whole.failure);
      if (trial.fits) break;
      ASSERT_EQ(trial.next_device_bytes, whole.next_device_bytes) << round;
      events_of_all += whole.failure->event + 1;
      events_run += trial.events;
      device = trial.next_device_bytes;
    }
    const auto least = FindLeastDevice(events, config, {.part_events = 5});
    ASSERT_TRUE(least);
    EXPECT_EQ(least->bytes, device);
  }
  EXPECT_LT(2 * events_run, events_of_all);
}

// Small blocks at the end of each 40 MiB leave holes, so that the second segment is made
// while the first one has 60 MiB of addresses left. The last block goes there.
TEST(LeastDevice, SegmentsThatGrowStayBelowLaterOnes) {
  std::string text;
  for (int k = 0; k < 10; ++k) {
    text += fmt::format("a {} {}\na {} {}\n", 2 * k, 30 * kMiB, 2 * k + 1,
                        10 * kMiB);
  }
  for (int k = 0; k < 10; ++k) text += fmt::format("f {}\n", 2 * k);
  text += fmt::format("a 20 {}\na 21 {}\n", 70 * kMiB, 50 * kMiB);
  const AllocatorEvents events = Events(text);
  const AllocatorConfig config = Config("expandable_segments:True");
  EventRunner moved_runner(events, config, 64 * kMiB);
  EventRunner new_runner(events, config, 400 * kMiB);
  BlockId block = kNoBlock;
  for (size_t k = 0; k < events.events.size(); ++k) {
    if (k == 2) {
      ASSERT_TRUE(moved_runner.MoveTo(400 * kMiB));
    }
    ASSERT_TRUE(new_runner.Run(k, block));
    const BlockId expected = block;
    ASSERT_TRUE(moved_runner.Run(k, block));
    if (expected == kNoBlock) continue;
    const Placement place = new_runner.allocator().PlacementOf(expected);
    EXPECT_EQ(moved_runner.allocator().PlacementOf(block), place) << k;
  }
  const Placement last = moved_runner.allocator().PlacementOf(block);
  EXPECT_EQ(last, (Placement{.segment = 0, .offset = 400 * kMiB}));
}

TEST(LeastDevice, RunsAreTheSameUpToTheNextDevice) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 70; ++round) {
    const AllocatorConfig config = Config(kSettings[round % 7]);
    const AllocatorEvents events = RandomEvents(random);
    const int64_t device = 1 + static_cast<int64_t>(random() % (500ull * kMiB));
    const Replay run = ReplayEvents(events, config, device);
    if (run.next_device_bytes > kLargestDevice) continue;
    const Replay last = ReplayEvents(events, config, run.next_device_bytes - 1);
    EXPECT_EQ(last.next_device_bytes, run.next_device_bytes);
    EXPECT_EQ(last.counts.peak_reserved_bytes, run.counts.peak_reserved_bytes);
    EXPECT_EQ(last.counts.retries, run.counts.retries);
    EXPECT_EQ(last.failure.has_value(), run.failure.has_value());
  }
}

TEST(LeastDevice, MoreMemoryMayFail) {
  // On 100 MiB the cache is emptied early; on 102 MiB its holes stay.
  std::mt19937_64 random(7);
  int exceptions = 0;
  for (int round = 0; round < 400; ++round) {
    const AllocatorEvents events = RandomEvents(random);
    const auto least = FindLeastDevice(events, Config(""));
    ASSERT_TRUE(least);
    for (int64_t k = 1; k < 32; ++k) {
      if (ReplayEvents(events, Config(""), least->bytes + k * 2 * kMiB)
              .failure) {
        ++exceptions;
        break;
      }
    }
  }
  EXPECT_GT(exceptions, 0);
}

TEST(LeastDevice, HalvesWhenTheLimitComesFirst) {
  std::mt19937_64 random(8);
  const AllocatorEvents events = RandomEvents(random);
  const auto least = FindLeastDevice(events, Config(""), {.most_events = 0});
  ASSERT_TRUE(least);
  const auto proven = FindLeastDevice(events, Config(""));
  if (proven->runs > 1) {
    EXPECT_FALSE(least->is_least);
  }
  EXPECT_GE(least->bytes, proven->bytes);
  EXPECT_FALSE(ReplayEvents(events, Config(""), least->bytes).failure);
}

TEST(LeastDevice, ThereMayBeNone) {
  EXPECT_FALSE(FindLeastDevice(Events("a 1 1000000000000000\n"), Config("")));
}

}  // namespace
}  // namespace acplan::graph
