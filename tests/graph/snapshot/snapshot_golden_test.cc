#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/base/file_lines.h"
#include "graph/snapshot/recorded_run.h"
#include "graph/snapshot/recording.h"
#include "graph/snapshot/snapshot.h"

// Snapshots of PyTorch's own allocator (tests/campaigns/allocator.py
// --write-goldens): each is undone and run again.

namespace acplan::graph {
namespace {

using nlohmann::json;

constexpr PyTorchVersion kSnapshotVersion{2, 13};

std::vector<json> SnapshotCases() {
  std::vector<json> cases;
  ForEachLine(ACPLAN_TEST_DATA_DIR "/allocator/snapshots.jsonl.gz",
              [&](std::string_view line) {
                if (!line.empty()) cases.push_back(json::parse(line));
              });
  return cases;
}

AllocatorConfig SettingsOf213(const std::string& text) {
  return ParseAllocatorConfig(text, "settings", kSnapshotVersion);
}

// A case with its snapshot undone.
struct SnapshotGolden {
  explicit SnapshotGolden(const json& entry)
      : snapshot(ParseSnapshot(entry["snapshot"].dump(), "snapshot")),
        config(SettingsOf213(*snapshot.allocator)),
        recording(MakeRecording(snapshot.devices[0], config, "snapshot")) {}

  Snapshot snapshot;
  AllocatorConfig config;
  Recording recording;
};

TEST(SnapshotGoldenTest, EveryAllocationAndSegmentIsWhereItWas) {
  const std::vector<json> cases = SnapshotCases();
  ASSERT_GE(cases.size(), 12);
  for (size_t k = 0; k < cases.size(); ++k) {
    SCOPED_TRACE(k);
    const SnapshotGolden golden(cases[k]);
    const RecordingComparison comparison = CompareWithRecording(
        golden.snapshot.devices[0], golden.recording, golden.config);
    EXPECT_EQ(golden.recording.contradictions, 0);
    EXPECT_GT(comparison.allocations, 9);
    EXPECT_EQ(comparison.equal_allocations, comparison.allocations);
    EXPECT_EQ(comparison.first_difference, std::nullopt);
    EXPECT_EQ(comparison.equal_segments, comparison.segments);
    EXPECT_EQ(comparison.peak_reserved_bytes,
              golden.recording.peak_reserved_bytes);
    if (!cases[k]["cut"].get<bool>()) {
      EXPECT_EQ(golden.recording.start_blocks, 0);
      EXPECT_EQ(golden.recording.failures, cases[k]["failures"]);
    } else {
      EXPECT_GT(golden.recording.start_blocks, 0);
    }
  }
}

TEST(SnapshotGoldenTest, OtherSettingsTakeWhatTheyTakeInPyTorch) {
  int64_t compared = 0;
  for (const json& entry : SnapshotCases()) {
    const SnapshotGolden golden(entry);
    for (const json& other : entry["others"]) {
      SCOPED_TRACE(other.dump());
      const AllocatorConfig config = SettingsOf213(other["allocator"]);
      const RecordedRun run =
          MakeRecordedRun(golden.recording, golden.config, config);
      const Replay replay = ReplayEvents(run.events, config, kLargestDevice);
      EXPECT_EQ(replay.counts.peak_allocated_bytes, other["peaks"][0]);
      EXPECT_EQ(replay.counts.peak_reserved_bytes, other["peaks"][1]);
      ++compared;
    }
  }
  EXPECT_GE(compared, 24);
}

TEST(SnapshotGoldenTest, TheDeviceOfTheRecordingFailsWhereItFailed) {
  int64_t failures = 0;
  for (const json& entry : SnapshotCases()) {
    if (entry["failures"] == 0 || entry["cut"].get<bool>()) continue;
    const SnapshotGolden golden(entry);
    ASSERT_TRUE(golden.recording.device_bytes);
    EXPECT_EQ(*golden.recording.device_bytes, int64_t{130} << 20);
    const RecordedRun run =
        MakeRecordedRun(golden.recording, golden.config, golden.config);
    const Replay replay =
        ReplayEvents(run.events, golden.config, *golden.recording.device_bytes);
    ASSERT_TRUE(replay.failure);
    const auto event = static_cast<size_t>(replay.failure->event);
    EXPECT_TRUE(run.is_failure[event]);
    const auto& events = golden.snapshot.devices[0].events;
    const auto first = std::ranges::find(
        events, SnapshotEvent::Kind::kOutOfMemory, &SnapshotEvent::kind);
    EXPECT_EQ(run.indices[event], first - events.begin());
    // With enough memory it ends, and not with less.
    const auto least = FindLeastDevice(run.events, golden.config);
    ASSERT_TRUE(least);
    EXPECT_FALSE(ReplayEvents(run.events, golden.config, least->bytes).failure);
    EXPECT_TRUE(
        ReplayEvents(run.events, golden.config, least->bytes - 1).failure);
    ++failures;
  }
  EXPECT_GE(failures, 2);
}

TEST(SnapshotGoldenTest, RunsOfACutRecordingBeginWithItsBlocks) {
  for (const json& entry : SnapshotCases()) {
    if (!entry["cut"].get<bool>()) continue;
    const SnapshotGolden golden(entry);
    for (const char* text : {"native", "expandable_segments:True"}) {
      const AllocatorConfig config = SettingsOf213(text);
      const RecordedRun run =
          MakeRecordedRun(golden.recording, golden.config, config);
      EXPECT_EQ(run.keeps_start, golden.config.expandable_segments ==
                                     config.expandable_segments);
      EXPECT_EQ(run.events.start.empty(), !run.keeps_start);
      const auto least = FindLeastDevice(run.events, config);
      ASSERT_TRUE(least);
      EXPECT_FALSE(ReplayEvents(run.events, config, least->bytes).failure);
      EXPECT_GE(least->bytes, MostBlockBytes(run.events, config));
    }
  }
}

}  // namespace
}  // namespace acplan::graph
