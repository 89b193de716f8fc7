#include "graph/snapshot/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/base/input_error.h"
#include "graph/snapshot/recorded_run.h"
#include "graph/snapshot/recording.h"

namespace acplan::graph {
namespace {

using testing::HasSubstr;

// A large segment of 20 MiB, in which 4 MiB live and 8 MiB were freed, and the
// events of both.
constexpr char kSmallSnapshot[] = R"({
  "format": "acplan.snapshot", "version": 1, "allocator": "",
  "lines": ["train.py:3 step"],
  "devices": [{
    "segments": [{
      "address": 2097152, "bytes": 20971520, "stream": 0, "pool": "large",
      "expandable": false, "private_pool": null,
      "blocks": [["allocated", 2097152, 4194304, 4194304, -1],
                 ["free", 6291456, 16777216, 0, -1]]}],
    "events": [["alloc", 6291456, 8388608, 0, 0],
               ["free_requested", 6291456, 8388608, 0, -1],
               ["free_completed", 6291456, 8388608, 0, -1]]}]})";

std::string SnapshotWith(std::string_view text, std::string_view replacement) {
  std::string snapshot = kSmallSnapshot;
  const size_t at = snapshot.find(text);
  EXPECT_NE(at, std::string::npos) << text;
  return snapshot.replace(at, text.size(), replacement);
}

std::string SnapshotErrorOf(const std::string& text) {
  try {
    const Snapshot snapshot = ParseSnapshot(text, "s.json");
    MakeRecording(snapshot.devices.at(0), {}, "s.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(SnapshotTest, BlocksThatAreOlderStayWhereTheyLay) {
  const Snapshot snapshot = ParseSnapshot(kSmallSnapshot, "s.json");
  const Recording recording = MakeRecording(snapshot.devices[0], {}, "s.json");
  EXPECT_EQ(recording.allocations, 1);
  EXPECT_EQ(recording.start_blocks, 1);
  ASSERT_EQ(recording.start.size(), 1);
  ASSERT_EQ(recording.start[0].blocks.size(), 2);
  EXPECT_EQ(recording.start[0].blocks[0].bytes, 4 << 20);
  EXPECT_EQ(recording.start[0].blocks[1].block, -1);
  EXPECT_EQ(recording.peak_reserved_bytes, 20 << 20);
  EXPECT_EQ(recording.blocks[1].line, 0);
  const RecordingComparison comparison =
      CompareWithRecording(snapshot.devices[0], recording, {});
  EXPECT_EQ(comparison.equal_allocations, 1);
  EXPECT_EQ(comparison.equal_segments, 1);
}

// 7 MiB and a half live before 12 MiB: the segment has no smaller pieces, so the
// half is a part of the block before it.
TEST(SnapshotTest, TheSizeOfAnOlderBlockFollowsFromTheNextOne) {
  const std::string text =
      SnapshotWith(R"("events": [["alloc", 6291456, 8388608, 0, 0],)",
                   R"("events": [["alloc", 14680064, 4194304, 0, 0],
          ["free_completed", 6291456, 7864320, 0, 0],
          ["free_completed", 14680064, 4194304, 0, 0],
          ["alloc", 6291456, 8388608, 0, 0],)");
  const Snapshot snapshot = ParseSnapshot(text, "s.json");
  const Recording recording = MakeRecording(snapshot.devices[0], {}, "s.json");
  ASSERT_EQ(recording.start[0].blocks.size(), 3);
  EXPECT_EQ(recording.start[0].blocks[1].bytes, 8 << 20);
  EXPECT_EQ(CompareWithRecording(snapshot.devices[0], recording, {})
                .equal_allocations,
            2);
}

TEST(SnapshotTest, EventsThatContradictTheSnapshotAreLeftOut) {
  const std::string text =
      SnapshotWith(R"(["free_requested", 6291456, 8388608, 0, -1])",
                   R"(["alloc", 10485760, 8388608, 0, 0])");
  const Snapshot snapshot = ParseSnapshot(text, "s.json");
  const Recording recording = MakeRecording(snapshot.devices[0], {}, "s.json");
  EXPECT_EQ(recording.contradictions, 1);
  EXPECT_EQ(recording.allocations, 1);
}

TEST(SnapshotTest, RefusesWhatIsNoSnapshot) {
  EXPECT_THAT(SnapshotErrorOf("{}"), HasSubstr("s.json: "));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("acplan.snapshot", "acplan.trace")),
              HasSubstr("s.json: format"));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("\"large\"", "\"huge\"")),
              HasSubstr("pool: expected one of large, small"));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("16777216, 0", "16777215, 0")),
              HasSubstr("expected blocks that fill their segment"));
  EXPECT_THAT(
      SnapshotErrorOf(SnapshotWith("6291456, 16777216", "6291457, 16777215")),
      HasSubstr("expected blocks that fill their segment"));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("0, 0],", "0, 1],")),
              HasSubstr("events[0][4]: expected"));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("[\"alloc\",", "[\"malloc\",")),
              HasSubstr("expected one of alloc"));
  EXPECT_THAT(SnapshotErrorOf(SnapshotWith("[\"alloc\", 6291456,",
                                           "[\"free_requested\", 1,")),
              HasSubstr("expected a recording with allocations"));
}

}  // namespace
}  // namespace acplan::graph
