#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/schedule/node_link.h"
#include "problems/check/schedule_check.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

// input (4 bytes) -> b (6) -> 7 (8); 7, input -> d (3); d, b -> e (1): d needs
// 15 bytes, and b is beside it unless b runs again.
constexpr char kNodeLink[] =
    ACPLAN_TEST_DATA_DIR "/../fuzz/seeds/small_node_link.json";
constexpr char kJoint[] = ACPLAN_DATA_DIR "/joint/gpt2_tiny.json.gz";

class ScheduleCommandTest : public CliTest {
 protected:
  json Schedule(const std::string& graph, const std::string& budget) const {
    return AcplanJson({"schedule", graph, "--budget", budget});
  }
};

TEST_F(ScheduleCommandTest, SaysWhatRunsAgain) {
  const std::string text = AcplanOut({"schedule", kNodeLink, "--budget", "18"});
  for (const std::string part :
       {"small, 5 operators, any schedule\nbudget 18 B (18 bytes)\n",
        "             run once  schedule   change\n",
        "peak memory      21 B      18 B   -14.3%\n",
        "step time        11.5      16.5  +43.48%\n",
        "recomputed                    5\n",
        "runs                5         6\n",
        "operator  run again  recomputed\nb                 1           5\n",
        "optimal: no schedule within the budget recomputes less (gap 0, "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(ScheduleCommandTest, TellsProgramsTheSchedule) {
  json answer = Schedule(kNodeLink, "18");
  for (const char* effort : {"seconds", "models", "moments", "tries"}) {
    EXPECT_GE(answer[effort], 0);
    answer.erase(effort);
  }
  EXPECT_EQ(answer, json({{"format", "acplan.schedule"},
                          {"version", 1},
                          {"model", "small"},
                          {"status", "optimal"},
                          {"budget_bytes", 18},
                          {"peak_bytes", 18},
                          {"peak_node", "7"},
                          {"recomputed", 5.0},
                          {"gap", 0.0},
                          {"bound", 5.0},
                          {"baseline_peak_bytes", 21},
                          {"step_time", 11.5},
                          {"time_unit", nullptr},
                          {"nodes", {"input", "b", "7", "d", "e"}},
                          {"sequence", {0, 1, 2, 3, 1, 4}}}));
}

TEST_F(ScheduleCommandTest, WritesWhatItPrintsAndWhatItPrintsIsSo) {
  const std::string printed = AcplanOut({"schedule", kJoint, "--budget", "70%",
                                         "--memory", "--json", "-o", "s.json"});
  EXPECT_EQ(printed, Read("s.json"));
  const json answer = json::parse(printed);
  const problems::ScheduleEffect effect = problems::ComputeScheduleEffect(
      graph::ReadScheduleGraph(kJoint),
      answer["sequence"].get<std::vector<int32_t>>());
  EXPECT_EQ(effect.peak_bytes, answer["peak_bytes"]);
  EXPECT_LE(effect.peak_bytes, answer["budget_bytes"]);
  EXPECT_NEAR(effect.recompute_ms, answer["recomputed"].get<double>(), 1e-12);
  EXPECT_EQ(answer["time_unit"], "ms");
  EXPECT_EQ(answer["memory"].size(), answer["sequence"].size());
  EXPECT_LE(answer["bound"], answer["recomputed"]);
}

TEST_F(ScheduleCommandTest, FrontiersBeginWithWhatOneOperatorNeeds) {
  const std::string printed = AcplanOut(
      {"schedule", kNodeLink, "--frontier", "4", "--json", "-o", "f.json"});
  EXPECT_EQ(printed, Read("f.json"));
  const json frontier = json::parse(printed);
  EXPECT_EQ(frontier["format"], "acplan.schedule_frontier");
  ASSERT_EQ(frontier["points"].size(), 4u);
  EXPECT_EQ(frontier["points"][0]["budget_bytes"], 15);
  EXPECT_EQ(frontier["points"][0]["status"], "optimal");
  EXPECT_EQ(frontier["points"][0]["recomputed"], 6);
  EXPECT_EQ(frontier["points"][3]["budget_bytes"], 21);
  EXPECT_EQ(frontier["points"][3]["recomputed"], 0);
  EXPECT_THAT(AcplanOut({"schedule", kNodeLink, "--frontier", "3"}),
              HasSubstr("optimal"));
}

TEST_F(ScheduleCommandTest, SaysWhereNothingFits) {
  const Outcome outcome = Acplan({"schedule", kNodeLink, "--budget", "14"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out,
              HasSubstr("infeasible: no schedule fits in 14 B (14 bytes)\nthe "
                        "largest operator alone needs 15 B (15 bytes)\n"));
  const Outcome as_json =
      Acplan({"schedule", kNodeLink, "--budget", "14", "--json"});
  EXPECT_EQ(as_json.exit_code, 3);
  EXPECT_EQ(json::parse(as_json.out)["least_bound_bytes"], 15);
}

TEST_F(ScheduleCommandTest, WrongInputIsRefused) {
  const auto refuse = [&](std::vector<std::string> flags,
                          const std::vector<std::string>& fragments) {
    flags.insert(flags.begin(), {"schedule", "-o", "s.json"});
    ExpectRefused(Acplan(flags), fragments);
    EXPECT_FALSE(Exists("s.json"));
  };
  ExpectRefused(
      Acplan({"remat", kNodeLink, "--budget", "18"}),
      {": expected a joint graph, found a node-link graph, which 'acplan "
       "schedule' reads"});
  refuse({kNodeLink}, {"--budget: expected one of"});
  refuse({kNodeLink, "--budget", "min"},
         {"--budget: expected a size or a share of any schedule"});
  refuse({kNodeLink, "--budget", "18", "--kept", "3"},
         {"unknown flag '--kept'"});
  refuse({kNodeLink, "--budget", "18", "--frontier", "3"},
         {"--budget: expected one of --budget and --frontier"});
  refuse({kNodeLink, "--budget", "18", "--gap", "x"},
         {"--gap: expected", "'x'"});
  refuse({kNodeLink, "--frontier", "1"}, {"--frontier", "'1'"});
  refuse({kNodeLink, "--frontier", "3", "--memory"},
         {"--memory: needs --json"});
  refuse({"none.json", "--budget", "18"}, {"none.json"});
  json graph = json::parse(graph::ReadFile(kNodeLink));
  graph["links"][1]["target"] = "zz";
  PutFile("g.json", graph.dump());
  refuse({"g.json", "--budget", "18"},
         {"g.json: links[1].target: expected the id of a node, found \"zz\""});
  // Buffers that may not be kept from forward to backward only make sense with
  // passes.
  refuse({ACPLAN_TEST_DATA_DIR "/../fuzz/seeds/small_joint.json", "--budget",
          "1GiB"},
         {"buffers[6].keep: expected true, of any schedule, found false"});
  json empty = json::parse(
      graph::ReadFile(ACPLAN_TEST_DATA_DIR "/../fuzz/seeds/small_joint.json"));
  empty["nodes"] = json::array();
  empty["backward_outputs"] = empty["forward_outputs"] = json::array();
  PutFile("empty.json", empty.dump());
  refuse(
      {"empty.json", "--budget", "1GiB"},
      {"empty.json: nodes: expected at least one node, found an array of 0"});
}

// Clp's assertion once ended the process before CBC's branch and bound began.
TEST_F(ScheduleCommandTest, NoAssertionOfASolverEndsIt) {
  const json schedule =
      Schedule(ACPLAN_TEST_DATA_DIR "/clp_assertion.joint.json", "909312");
  EXPECT_EQ(schedule["status"], "optimal");
  EXPECT_LE(schedule["peak_bytes"], 909312);
}

}  // namespace

}  // namespace acplan::cli
