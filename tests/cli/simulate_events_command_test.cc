#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/simulated_file_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

// 30 MiB, freed, and 40 MiB beside 5 MiB.
constexpr char kEvents[] =
    "# a run\n"
    "a 1 31457280\n"
    "f 1\n"
    "a 2 41943040\n"
    "a 3 5242880\n"
    "f 2\n"
    "f 3\n";

class SimulateEventsTest : public SimulatedFileTest {
 protected:
  SimulateEventsTest() : SimulatedFileTest("--events", kEvents) {}
};

TEST_F(SimulateEventsTest, SaysWhatTheRunTakes) {
  const json answer = Json();
  EXPECT_EQ(answer["torch_version"], "2.15");
  EXPECT_EQ(answer["events"], 6);
  EXPECT_TRUE(answer["device_bytes"].is_null());
  // The block of 30 MiB is too small for 40; the 5 MiB are split off it.
  EXPECT_EQ(answer["allocated_bytes"], 45 << 20);
  EXPECT_EQ(answer["reserved_bytes"], 70 << 20);
  EXPECT_EQ(answer["least_device_bytes"], 60 << 20);
  EXPECT_EQ(answer["least_device_proven"], true);
  EXPECT_EQ(answer["retries"], 0);
  EXPECT_TRUE(answer["failure"].is_null());
  EXPECT_EQ(answer["peak"]["event"], 2);
  EXPECT_EQ(answer["peak"]["line"], 4);
  EXPECT_EQ(answer["peak"]["segments"].size(), 2);
}

TEST_F(SimulateEventsTest, RunsOnADevice) {
  const json answer = Json({"--device-memory", "60MiB"});
  EXPECT_EQ(answer["device_bytes"], 60 << 20);
  EXPECT_EQ(answer["retries"], 1);
  EXPECT_EQ(answer["reclaims"][0]["event"], 2);
  EXPECT_EQ(answer["reclaims"][0]["released_bytes"], 30 << 20);
  EXPECT_TRUE(answer["failure"].is_null());
}

// The name of a GPU stands for what PyTorch can have of it.
TEST_F(SimulateEventsTest, RunsOnADeviceThatIsNamed) {
  const json answer = Json({"--device-memory", "RTX 4090"});
  const json& gpu = answer["gpu"];
  EXPECT_EQ(gpu["gpu"], "rtx4090");
  EXPECT_EQ(gpu["capacity_bytes"].get<int64_t>() -
                gpu["context_bytes"].get<int64_t>(),
            answer["device_bytes"]);
  EXPECT_EQ(gpu["available_bytes"], answer["device_bytes"]);
  EXPECT_FALSE(Json({"--device-memory", "60MiB"}).contains("gpu"));
  EXPECT_THAT(Run({"--device-memory", "rtx4090"}).out,
              HasSubstr("rtx4090: 23.61 GiB - 506.88 MiB of CUDA context = "
                        "23.12 GiB for PyTorch\n"));
  EXPECT_THAT(Run({"--device-memory", "gh200"}).out,
              HasSubstr("no reading of its capacity: 98.5% of the data sheet"));
}

TEST_F(SimulateEventsTest, SaysWhereTheRunFails) {
  const json answer = Json({"--device-memory", "58MiB"});
  const json& failure = answer["failure"];
  EXPECT_EQ(failure["event"], 3);
  EXPECT_EQ(failure["line"], 5);
  EXPECT_EQ(failure["id"], 3);
  EXPECT_EQ(failure["bytes"], 5 << 20);
  EXPECT_EQ(failure["reserved_bytes"], 40 << 20);
  EXPECT_EQ(failure["free_bytes"], 18 << 20);
  EXPECT_EQ(answer["least_device_bytes"], 60 << 20);
  const Outcome text = Run({"--device-memory", "58MiB"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("out of memory: 5.00 MiB on stream 0 at "
                                  "event 3 (line 5)"));
}

TEST_F(SimulateEventsTest, TakesTheConfiguration) {
  const json answer = Json({"--allocator", "expandable_segments:True"});
  EXPECT_EQ(answer["reserved_bytes"], 60 << 20);
  EXPECT_EQ(answer["peak"]["segments"][0]["expandable"], true);
  EXPECT_EQ(Json({"--allocator", "native", "--torch-version",
                  "2.9"})["torch_version"],
            "2.9");
}

TEST_F(SimulateEventsTest, PrintsATableOfThePeak) {
  const Outcome outcome = Run();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("6 events, PyTorch 2.15, native segments, "
                                     "a device without limit"));
  EXPECT_THAT(outcome.out, HasSubstr("least device: 60.00 MiB"));
  EXPECT_THAT(outcome.out,
              HasSubstr("At the peak of reserved bytes, at event 2 (line 4)"));
  EXPECT_THAT(outcome.out, HasSubstr("largest free"));
}

TEST_F(SimulateEventsTest, LeavesTheLeastDeviceOut) {
  const json answer = Json({"--without-least-device"});
  EXPECT_FALSE(answer.contains("least_device_bytes"));
}

TEST_F(SimulateEventsTest, WritesATimeline) {
  const Outcome outcome = Run({"--timeline", "steps.csv", "-o", "out.json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(Read("steps.csv"),
              testing::StartsWith(
                  "event,kind,id,bytes,stream,segment,offset,allocated_bytes,"
                  "reserved_bytes,retries\n"
                  "0,allocate,1,31457280,0,0,0,31457280,31457280,0\n"
                  "1,free,1,0,0,,,0,31457280,0\n"
                  "2,allocate,2,41943040,0,1,0,41943040,73400320,0\n"));
  EXPECT_EQ(json::parse(Read("out.json"))["events"], 6);
}

TEST_F(SimulateEventsTest, RefusesWrongInput) {
  ExpectRefused(Run({"--allocator", "max_split_size:64"}),
                {"--allocator: no option \"max_split_size\"; the nearest is "
                 "max_split_size_mb"});
  ExpectRefused(Run({"--torch-version", "2.7"}),
                {"--torch-version: expected a version of PyTorch from 2.8"});
  ExpectRefused(Run({"--device-memory", "much"}),
                {"--device-memory: expected a size (24GiB) or a GPU"});
  ExpectRefused(Run({"--device-memory", "rtx4091"}),
                {"--device-memory: ", "did you mean rtx4090?"});
  ExpectRefused(Run({"trace.json"}),
                {"--events: cannot be combined with TRACE"});
  PutFile("wrong.txt", "a 1 5\nb 1\n");
  ExpectRefused(
      Acplan({"simulate", "--events", "wrong.txt"}),
      {"wrong.txt, line 2: expected a, f, s, e, g, p, q or d, found \"b\""});
  ExpectRefused(Acplan({"simulate", "--events", "missing.txt"}),
                {"missing.txt: cannot be opened"});
  ExpectRefused(Acplan({"simulate"}),
                {"TRACE, --events or --snapshot is required"});
  ExpectRefused(Run({"--optimizer-state", "first"}),
                {"--optimizer-state: needs TRACE"});
}

}  // namespace

}  // namespace acplan::cli
