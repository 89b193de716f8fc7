#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/simulated_file_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

// 4 MiB that are older than the recording, 40 MiB for a while, and a request of
// 30 MiB that failed with 24 MiB in segments and 5 MiB free.
constexpr char kRecorded[] = R"({
  "format": "acplan.snapshot", "version": 1, "allocator": "",
  "lines": ["train.py:3 step", "model.py:7 forward"],
  "devices": [{"segments": [], "events": []}, {
    "segments": [{
      "address": 2097152, "bytes": 20971520, "stream": 0, "pool": "large",
      "expandable": false, "private_pool": null,
      "blocks": [["allocated", 2097152, 4194304, 4194304, 1],
                 ["free", 6291456, 16777216, 0, -1]]}],
    "events": [["segment_alloc", 104857600, 41943040, 0, 0],
               ["alloc", 104857600, 41943040, 0, 0],
               ["alloc", 6291456, 2097152, 0, 1],
               ["free_requested", 6291456, 2097152, 0, 1],
               ["free_completed", 6291456, 2097152, 0, 1],
               ["free_requested", 104857600, 41943040, 0, -1],
               ["free_completed", 104857600, 41943040, 0, -1],
               ["segment_free", 104857600, 41943040, 0, 0],
               ["oom", 5242880, 31457280, 0, 1]]}]})";

class SimulateSnapshotTest : public SimulatedFileTest {
 protected:
  SimulateSnapshotTest() : SimulatedFileTest("--snapshot", kRecorded) {}
};

TEST_F(SimulateSnapshotTest, SaysWhatWasRecordedAndWhatTheRunTakes) {
  const json answer = Json();
  EXPECT_EQ(answer["device"], 1);
  EXPECT_EQ(answer["events"], 9);
  const json& recorded = answer["recorded"];
  EXPECT_EQ(recorded["allocations"], 2);
  EXPECT_EQ(recorded["older_blocks"], 1);
  EXPECT_EQ(recorded["older_bytes"], 4 << 20);
  EXPECT_EQ(recorded["reserved_bytes"], 60 << 20);
  EXPECT_EQ(recorded["failures"], 1);
  EXPECT_EQ(recorded["device_bytes"], 25 << 20);
  EXPECT_EQ(recorded["simulated"]["equal_allocations"], 2);
  EXPECT_EQ(recorded["simulated"]["equal_segments"], 1);
  EXPECT_EQ(answer["keeps_older_blocks"], true);
  EXPECT_EQ(answer["reserved_bytes"], 60 << 20);
  EXPECT_TRUE(answer["failure"].is_null());
  EXPECT_EQ(answer["least_device_bytes"], 60 << 20);
  EXPECT_EQ(answer["peak"]["source"], "train.py:3 step");
}

TEST_F(SimulateSnapshotTest, FailsOnASmallDevice) {
  const json answer = Json({"--device-memory", "50MiB"});
  EXPECT_EQ(answer["failure"]["event"], 1);
  EXPECT_EQ(answer["failure"]["source"], "train.py:3 step");
  EXPECT_EQ(answer["failure"]["failed_in_recording"], false);
  EXPECT_EQ(answer["peak"]["hole_bytes"], 16 << 20);
  EXPECT_EQ(answer["peak"]["beside_holes"][0]["source"], "model.py:7 forward");
  const Outcome text = Run({"--device-memory", "50MiB"});
  EXPECT_THAT(text.out, HasSubstr("40.00 MiB on stream 0 at event 1 "
                                  "(train.py:3 step)"));
  EXPECT_THAT(text.out, HasSubstr("out of memory: 1 time, on a device with "
                                  "25.00 MiB for PyTorch"));
  EXPECT_THAT(text.out, HasSubstr("note: 1 block of 4.00 MiB"));
}

TEST_F(SimulateSnapshotTest, OtherSegmentsAllocateOlderBlocksFirst) {
  const json answer = Json({"--allocator", "expandable_segments:True"});
  EXPECT_EQ(answer["keeps_older_blocks"], false);
  EXPECT_EQ(answer["least_device_bytes"], 60 << 20);
  const json failed = Json(
      {"--allocator", "expandable_segments:True", "--device-memory", "2MiB"});
  EXPECT_TRUE(failed["failure"]["event"].is_null());
}

TEST_F(SimulateSnapshotTest, WritesATimeline) {
  const Outcome outcome = Run({"--timeline", "steps.csv", "-o", "out.json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(
      Read("steps.csv"),
      HasSubstr("1,allocate,104857600,41943040,0,1,0,46137344,62914560,0\n"));
  EXPECT_EQ(json::parse(Read("out.json"))["events"], 9);
}

TEST_F(SimulateSnapshotTest, RefusesWrongInput) {
  ExpectRefused(Run({"--device", "2"}), {"--device: expected 0 to 1, found 2"});
  ExpectRefused(Run({"--device", "0"}),
                {"simulated: devices[0]: expected a recording"});
  ExpectRefused(Run({"trace.json"}),
                {"--snapshot: cannot be combined with TRACE"});
  ExpectRefused(Run({"--events", "e.txt"}),
                {"--snapshot: cannot be combined with --events"});
  ExpectRefused(Run({"--optimizer-state", "first"}),
                {"--optimizer-state: needs TRACE"});
  ExpectRefused(Run({"--device-memory", "4MiB"}),
                {"--device-memory: expected at least 20.00 MiB"});
  ExpectRefused(Acplan({"simulate", "--events", "e.txt", "--device", "0"}),
                {"--device: needs --snapshot"});
  PutFile("wrong.json", "{\"segments\": []}");
  ExpectRefused(Acplan({"simulate", "--snapshot", "wrong.json"}),
                {"wrong.json: "});
}

}  // namespace
}  // namespace acplan::cli
