#include "graph/run/run_on_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/run/peak_layout.h"
#include "tests/graph/mebibytes.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::Repetitions;

AllocatorConfig ConfigOf(const std::string& settings) {
  return ParseAllocatorConfig(settings, "settings");
}

const std::vector<std::string>& Settings() {
  static const std::vector<std::string> settings = {
      "native", "expandable_segments:True", "max_split_size_mb:32",
      "garbage_collection_threshold:0.6", "roundup_power2_divisions:4"};
  return settings;
}

// A random step whose storages have sizes around the allocator's thresholds.
Trace LargeStep(std::mt19937& random) {
  Trace trace = test_support::RandomStep(random, RandomOptions(random));
  std::uniform_int_distribution<int64_t> large(1, 40 * kMiB);
  std::uniform_int_distribution<int> is_large(0, 2);
  for (TraceStorage& storage : trace.storages) {
    if (is_large(random) > 0) storage.bytes = large(random);
  }
  return trace;
}

TrainingRun RunOf(const Trace& trace, int64_t iterations) {
  return MakeTrainingRun(trace, Simulator(trace).Live({}),
                         {.iterations = iterations});
}

// Later iterations repeat the period, as many as are tried: no peak is higher, no request fails, and each period has the same retries.
TEST(RunOnDeviceTest, LaterIterationsRepeatThePeriod) {
  std::mt19937 random(3);
  int tight = 0;
  for (int k = 0; k < Repetitions(200); ++k) {
    SCOPED_TRACE(k);
    const Trace trace = LargeStep(random);
    const AllocatorConfig config =
        ConfigOf(Settings()[static_cast<size_t>(k) % Settings().size()]);
    const TrainingRun run = RunOf(trace, 40);
    const auto least = FindLeastDevice(run, config);
    ASSERT_TRUE(least);
    for (const int64_t device : {least->bytes, kLargestDevice}) {
      const RunOutcome outcome = RunOnDevice(run, config, device);
      ASSERT_TRUE(outcome.Fits());
      if (outcome.period == 0) continue;
      ASSERT_LT(outcome.iterations, 40);
      std::vector<int64_t> retries;  // at the end of each iteration
      const Replay all = ReplayEvents(
          run.events, config, device,
          [&](size_t event, const EventRunner& runner, BlockId) {
            if (event + 1 == run.iteration_ends[retries.size()].events) {
              retries.push_back(runner.allocator().counts().retries);
            }
            return retries.size() < run.iteration_ends.size();
          });
      EXPECT_FALSE(all.failure);
      EXPECT_EQ(all.counts.peak_reserved_bytes,
                outcome.replay.counts.peak_reserved_bytes);
      EXPECT_EQ(all.counts.peak_allocated_bytes,
                outcome.replay.counts.peak_allocated_bytes);
      for (auto i = static_cast<size_t>(outcome.iterations); i < retries.size();
           ++i) {
        EXPECT_EQ(retries[i] - retries[i - outcome.period],
                  outcome.period_retries);
      }
      tight += outcome.replay.counts.retries > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(tight, Enough(20));
}

TEST(RunOnDeviceTest, NoSmallerDeviceIsLargeEnough) {
  std::mt19937 random(5);
  for (int k = 0; k < Repetitions(60); ++k) {
    SCOPED_TRACE(k);
    const Trace trace = LargeStep(random);
    const AllocatorConfig config =
        ConfigOf(Settings()[static_cast<size_t>(k) % Settings().size()]);
    const TrainingRun run = RunOf(trace, 10);
    const auto least = FindLeastDevice(run, config);
    ASSERT_TRUE(least);
    ASSERT_TRUE(least->is_least);
    EXPECT_TRUE(RunOnDevice(run, config, least->bytes).Fits());
    for (int64_t device = least->bytes - 1;
         device > std::max<int64_t>(least->bytes - 80 * kMiB, 0);
         device -= kMiB / 2) {
      ASSERT_FALSE(RunOnDevice(run, config, device).Fits()) << device;
    }
  }
}

// The search runs what it knows from another device only once. Each trial as a run of its
// own leads to the same device.
TEST(RunOnDeviceTest, TheLeastDeviceIsThatOfWholeRuns) {
  std::mt19937 random(6);
  int trials = 0;
  for (int k = 0; k < Repetitions(150); ++k) {
    SCOPED_TRACE(k);
    const Trace trace = LargeStep(random);
    const AllocatorConfig config =
        ConfigOf(Settings()[static_cast<size_t>(k) % Settings().size()]);
    const TrainingRun run = RunOf(trace, 20);
    int64_t device = MostBlockBytes(run.events, config);
    int runs = 1;
    for (RunOutcome outcome = RunOnDevice(run, config, device); !outcome.Fits();
         outcome = RunOnDevice(run, config, device)) {
      device = outcome.replay.next_device_bytes;
      ++runs;
    }
    const auto least = FindLeastDevice(run, config);
    ASSERT_TRUE(least);
    EXPECT_EQ(least->bytes, device);
    EXPECT_EQ(least->runs, runs);
    trials += runs;
  }
  EXPECT_GT(trials, Enough(400));
}

TEST(RunOnDeviceTest, SaysWhereMemoryEnds) {
  std::mt19937 random(9);
  const Trace trace = LargeStep(random);
  const TrainingRun run = RunOf(trace, 5);
  const AllocatorConfig config = ConfigOf("native");
  const auto least = FindLeastDevice(run, config);
  ASSERT_TRUE(least);
  const RunOutcome outcome = RunOnDevice(run, config, least->bytes - 1);
  ASSERT_FALSE(outcome.Fits());
  const PeakLayout layout =
      LayoutAtPeak(run, config, least->bytes - 1, outcome);
  EXPECT_EQ(layout.event, outcome.replay.failure->event);
  EXPECT_EQ(layout.reserved_bytes, outcome.replay.failure->reserved_bytes);
}

// 12 MiB between two blocks of 4 MiB, in a segment of 20 MiB.
TEST(PeakLayoutTest, NamesTheBlocksBesideHoles) {
  TrainingRun run;
  run.events = ParseAllocatorEvents(
      "a 1 4194304\na 2 8388608\na 3 8388608\nf 2\na 4 12582912\nf 4\n",
      "events");
  run.storages = {StorageId{11}, StorageId{12}, StorageId{13}, StorageId{14}};
  run.iteration_ends = {{.events = 6, .blocks = {}}};
  const AllocatorConfig config = ConfigOf("native");
  const RunOutcome outcome = RunOnDevice(run, config, kLargestDevice);
  const PeakLayout layout = LayoutAtPeak(run, config, kLargestDevice, outcome);
  EXPECT_EQ(layout.event, 4);
  EXPECT_EQ(layout.reserved_bytes, 32 * kMiB);
  EXPECT_EQ(layout.allocated_bytes, 24 * kMiB);
  ASSERT_EQ(layout.holes.size(), 1);
  EXPECT_EQ(layout.holes[0].bytes, 8 * kMiB);
  EXPECT_EQ(layout.holes[0].neighbours,
            (std::array<int64_t, 2>{0, 2}));  // blocks 1 and 3
  EXPECT_EQ(layout.HoleBytes(), 8 * kMiB);
}

}  // namespace
}  // namespace acplan::graph
