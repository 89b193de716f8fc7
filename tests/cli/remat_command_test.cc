#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/joint/joint_graph.h"
#include "problems/check/remat_check.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// tests/graph/joint_simulation_test.cc works it by hand.
constexpr char kSmall[] =
    ACPLAN_TEST_DATA_DIR "/../fuzz/seeds/small_joint.json";
constexpr char kTiny[] = ACPLAN_DATA_DIR "/joint/gpt2_tiny.json.gz";
constexpr char kLlama[] = ACPLAN_DATA_DIR "/joint/llama_4_layers.json.gz";

class RematCommandTest : public CliTest {
 protected:
  json Plan(const std::string& graph, const std::string& budget) const {
    return AcplanJson({"remat", graph, "--budget", budget});
  }
};

TEST_F(RematCommandTest, SaysWhatIsKeptAndWhatRunsAgain) {
  const std::string text = AcplanOut({"remat", kSmall, "--budget", "155"});
  for (const std::string part :
       {"small, 8 nodes of forward and backward\nbudget 155 B (155 bytes)\n",
        "peak memory     156 B     153 B   -1.9%\n",
        "step time    13.50 ms  14.50 ms  +7.41%\n",
        "recomputed              1.00 ms\n",
        "aten.mm.default     1   20 B          0     0.00 ms\n",
        "in all              3   23 B          1     1.00 ms\n",
        "optimal: no plan within the budget recomputes less (gap 0, "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(RematCommandTest, TellsProgramsThePlan) {
  json answer = Plan(kSmall, "155");
  for (const char* effort : {"seconds", "labels", "cuts"}) {
    EXPECT_GE(answer[effort], 0);
    answer.erase(effort);
  }
  EXPECT_EQ(answer, json({{"format", "acplan.remat"},
                          {"version", 1},
                          {"model", "small"},
                          {"status", "optimal"},
                          {"budget_bytes", 155},
                          {"peak_bytes", 153},
                          {"peak_node", "drop"},
                          {"recompute_ms", 1.0},
                          {"bound_ms", 1.0},
                          {"gap", 0.0},
                          {"baseline_peak_bytes", 156},
                          {"forward_ms", 7.5},
                          {"backward_ms", 6.0},
                          {"saved_bytes", 23},
                          {"saved", {"s", "h", "e"}},
                          {"recomputed", {"drop"}}}));
}

// The searches for the plans of this test end by themselves.
TEST_F(RematCommandTest, MovesWhatTheLinkCarries) {
  const json alone = Plan(kTiny, "60%");
  for (const char* rate : {"100GB/s", "500GB/s,1000GB/s"}) {
    const json answer =
        AcplanJson({"remat", kTiny, "--budget", "60%", "--offload", rate,
                    "--memory", "--time-limit", "none"});
    const double cost_ms =
        answer["recompute_ms"].get<double>() + answer["stall_ms"].get<double>();
    EXPECT_LT(cost_ms, alone["recompute_ms"]);
    EXPECT_LE(answer["bound_ms"], cost_ms);
    EXPECT_LE(answer["peak_bytes"], answer["budget_bytes"]);
    EXPECT_GT(answer["moved_bytes"], 0);
    // Its own answer, evaluated.
    graph::WriteFile(folder() / "answer.json", answer.dump());
    const json evaluation =
        AcplanJson({"remat", kTiny, "--of", "answer.json", "--memory"});
    for (const char* key :
         {"moved", "moved_bytes", "stall_ms", "recompute_ms", "memory",
          "bytes_per_second", "back_bytes_per_second"})
      EXPECT_EQ(evaluation.value(key, json()), answer.value(key, json()))
          << key;
  }
  EXPECT_THAT(
      AcplanOut({"remat", kTiny, "--budget", "60%", "--offload", "1000GB/s",
                 "--time-limit", "none"}),
      AllOf(HasSubstr("\nmoved to the host "),
            HasSubstr("\nwaits for the link "),
            HasSubstr("optimal: no plan within the budget recomputes and waits "
                      "less (gap 0, ")));
}

// A link that carries nothing in the time of the step.
TEST_F(RematCommandTest, MovesAreNeverWorseThanNone) {
  const json alone = Plan(kTiny, "75%");
  EXPECT_GT(alone["recompute_ms"], 0);
  const json slow = AcplanJson({"remat", kTiny, "--budget", "75%", "--offload",
                                "1kB/s", "--time-limit", "none"});
  EXPECT_EQ(slow["moved_bytes"], 0);
  for (const char* key : {"recompute_ms", "peak_bytes", "saved"})
    EXPECT_EQ(slow[key], alone[key]) << key;
}

TEST_F(RematCommandTest, RefusesMovesThatItCannotPlan) {
  const auto error = [this](std::vector<std::string> flags) {
    std::vector<std::string> command = {"remat", kSmall};
    command.insert(command.end(), flags.begin(), flags.end());
    const Outcome outcome = Acplan(command);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error({"--frontier", "3", "--offload", "1GB/s"}),
              HasSubstr("--offload: cannot be combined with --frontier"));
  EXPECT_THAT(error({"--kept", "9", "--offload", "1GB/s"}),
              HasSubstr("--offload: cannot be combined with --kept"));
  EXPECT_THAT(error({"--budget", "90%", "--host-memory", "9"}),
              HasSubstr("--host-memory: needs --offload"));
  EXPECT_THAT(error({"--budget", "90%", "--offload", "quick"}),
              HasSubstr("--offload: expected"));
  EXPECT_THAT(error({"--budget", "90%", "--offload", "gpu"}),
              HasSubstr("--offload: gpu needs a trace that names its device"));
  graph::WriteFile(folder() / "moves.json",
                   R"({"saved": [], "bytes_per_second": 1, "moved": [
      {"buffer": "s", "release_before": null, "fetch_before": null}]})");
  EXPECT_THAT(error({"--of", "moves.json"}), HasSubstr("moves.json: "));
}

// Returns the bytes of every step, and whether it runs again.
std::vector<std::string> MemoryOf(const json& answer) {
  std::vector<std::string> steps;
  for (const json& step : answer.at("memory")) {
    steps.push_back(step.at("pass").get<std::string>().substr(0, 1) +
                    (step.at("again").get<bool>() ? " again " : " ") +
                    step.at("node").get<std::string>() + " " +
                    std::to_string(step.at("bytes").get<int64_t>()));
  }
  return steps;
}

TEST_F(RematCommandTest, EvaluatesWhatAFileSays) {
  PutFile("saved.json", R"({"saved": ["s"]})");
  const json answer =
      AcplanJson({"remat", kSmall, "--of", "saved.json", "--memory"});
  EXPECT_EQ(answer["status"], "given");
  EXPECT_EQ(answer["budget_bytes"], 156);
  EXPECT_EQ(answer["recompute_ms"], 5);
  EXPECT_FALSE(answer.contains("bound_ms"));
  EXPECT_THAT(MemoryOf(answer),
              ElementsAre("f seed 115", "f mm 151", "f drop 147", "f loss 123",
                          "b again mm 155", "b again drop 151", "b loss_b 156",
                          "b again scale 148", "b drop_b 136", "b mm_b 137"));
  EXPECT_THAT(AcplanOut({"remat", kSmall, "--of", "saved.json"}),
              HasSubstr("evaluated as given, without a search\n"));
}

TEST_F(RematCommandTest, MemoryIsLeftOutUnlessAskedFor) {
  EXPECT_FALSE(Plan(kSmall, "155").contains("memory"));
}

TEST_F(RematCommandTest, WritesWhatItPrints) {
  const std::string printed =
      AcplanOut({"remat", kTiny, "--budget", "80%", "--json", "-o", "p.json"});
  EXPECT_EQ(printed, Read("p.json"));
  // --of reads the file that the command wrote.
  const json plan = json::parse(printed);
  const json evaluation = AcplanJson({"remat", kTiny, "--of", "p.json"});
  for (const char* key : {"saved", "recomputed", "peak_bytes", "recompute_ms",
                          "saved_bytes", "peak_node", "baseline_peak_bytes"}) {
    EXPECT_EQ(evaluation[key], plan[key]) << key;
  }
}

// Expects that the program's statements about a plan are true, according to
// other code.
void ExpectIsSo(const json& answer, const graph::JointGraph& graph) {
  const auto saved = answer.at("saved").get<std::set<std::string>>();
  std::vector<char> is_kept;
  for (const graph::JointBuffer& buffer : graph.buffers)
    is_kept.push_back(saved.contains(buffer.name));
  const problems::RematEffect effect =
      problems::ComputeRematEffect(graph, is_kept);
  EXPECT_EQ(effect.peak_bytes, answer["peak_bytes"]);
  EXPECT_EQ(effect.kept_bytes, answer["saved_bytes"]);
  EXPECT_NEAR(effect.recompute_ms, answer["recompute_ms"], 1e-9);
  EXPECT_LE(effect.peak_bytes, answer["budget_bytes"]);
}

TEST_F(RematCommandTest, RealGraphsRecomputeMoreInLessMemory) {
  for (const char* file : {kTiny, kLlama}) {
    const graph::JointGraph graph = graph::ReadJointGraph(file);
    double last = 0;
    for (const char* budget : {"100%", "90%", "80%", "min"}) {
      const Outcome outcome =
          Acplan({"-q", "remat", file, "--budget", budget, "--json"});
      ASSERT_EQ(outcome.exit_code, 0) << file << budget;
      const json answer = json::parse(outcome.out);
      EXPECT_EQ(answer["status"], "optimal") << file << budget;
      ExpectIsSo(answer, graph);
      const double ms = answer["recompute_ms"];
      EXPECT_GE(ms, last);
      last = ms;
    }
    EXPECT_GT(last, 0);
  }
}

TEST_F(RematCommandTest, KeepsNoMoreThanAsked) {
  const json all = AcplanJson({"remat", kTiny, "--budget", "100%"});
  const int64_t kept_bytes = all["saved_bytes"].get<int64_t>() / 2;
  const json any =
      AcplanJson({"remat", kTiny, "--kept", std::to_string(kept_bytes)});
  EXPECT_EQ(any["status"], "optimal");
  EXPECT_TRUE(any["budget_bytes"].is_null());
  EXPECT_EQ(any["kept_budget_bytes"], kept_bytes);
  EXPECT_LE(any["saved_bytes"], kept_bytes);
  const json both = AcplanJson({"remat", kTiny, "--kept",
                                std::to_string(kept_bytes), "--budget", "80%"});
  EXPECT_GE(both["recompute_ms"], any["recompute_ms"]);
  EXPECT_LE(both["peak_bytes"], both["budget_bytes"]);
  EXPECT_THAT(AcplanOut({"remat", kTiny, "--kept", std::to_string(kept_bytes)}),
              testing::HasSubstr("budget any peak, "));
  ExpectRefused(Acplan({"remat", kTiny, "--kept", "much"}), {"--kept"});
  EXPECT_EQ(AcplanJson({"remat", kTiny, "--kept", "0"})["saved_bytes"], 0);
}

TEST_F(RematCommandTest, SharesAreOfKeepingAll) {
  const json all = Plan(kTiny, "100%");
  const int64_t bytes = all["baseline_peak_bytes"];
  EXPECT_EQ(all["budget_bytes"], bytes);
  EXPECT_EQ(Plan(kTiny, "80%")["budget_bytes"], bytes * 4 / 5);
  EXPECT_EQ(Plan(kTiny, "10GiB")["budget_bytes"], int64_t{10} << 30);
  // More memory than that recomputes no less.
  EXPECT_EQ(Plan(kTiny, "10GiB")["recompute_ms"], 0);
}

TEST_F(RematCommandTest, FrontiersAreOfPlans) {
  const std::string printed =
      AcplanOut({"remat", kSmall, "--frontier", "4", "--json", "-o", "f.json"});
  EXPECT_EQ(printed, Read("f.json"));
  const json frontier = json::parse(printed);
  EXPECT_EQ(frontier["format"], "acplan.remat_frontier");
  EXPECT_EQ(frontier["version"], 1);
  EXPECT_EQ(frontier["model"], "small");
  std::vector<int64_t> budgets;
  for (const json& point : frontier["points"]) {
    const int64_t budget = point["budget_bytes"];
    budgets.push_back(budget);
    EXPECT_EQ(point["status"], "optimal");
    EXPECT_EQ(point["recompute_ms"],
              Plan(kSmall, std::to_string(budget))["recompute_ms"]);
    EXPECT_FALSE(point.contains("saved"));
  }
  // From the least budget to the peak of keeping all.
  EXPECT_THAT(budgets, ElementsAre(153, 154, 155, 156));
  const std::string text = AcplanOut({"remat", kSmall, "--frontier", "2"});
  EXPECT_THAT(text, HasSubstr("153 B"));
  EXPECT_THAT(text, HasSubstr("156 B"));
  EXPECT_THAT(text, HasSubstr("optimal"));
}

TEST_F(RematCommandTest, TellsTheLeastBudgetWhereNothingFits) {
  const Outcome outcome = Acplan({"remat", kSmall, "--budget", "152"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out,
              HasSubstr("infeasible: no plan fits in 152 B (152 bytes)\n"
                        "a plan fits in 153 B (153 bytes); none in less than "
                        "153 B (153 bytes)\n"));
  const Outcome as_json =
      Acplan({"remat", kSmall, "--budget", "152", "--json"});
  EXPECT_EQ(as_json.exit_code, 3);
  const json answer = json::parse(as_json.out);
  EXPECT_EQ(answer["status"], "infeasible");
  EXPECT_EQ(answer["bound_ms"], nullptr);
  EXPECT_EQ(answer["least_bytes"], 153);
  EXPECT_EQ(answer["least_bound_bytes"], 153);
  EXPECT_FALSE(answer.contains("saved"));
  EXPECT_EQ(Plan(kSmall, "153")["peak_bytes"], 153);
  const json least = Plan(kSmall, "min");
  EXPECT_EQ(least["budget_bytes"], 153);
  EXPECT_EQ(least["least_bytes"], 153);
  EXPECT_EQ(least["least_bound_bytes"], 153);
}

TEST_F(RematCommandTest, StopsAtLimits) {
  const Outcome stopped =
      Acplan({"remat", kLlama, "--budget", "75%", "--time-limit", "0.000001"});
  EXPECT_EQ(stopped.exit_code, 4);
  EXPECT_THAT(stopped.out, HasSubstr("no plan: stopped by the time limit"));
  // Within the gap of the optimum, by the program's own bound.
  const double least = Plan(kLlama, "75%")["recompute_ms"];
  const json near = AcplanJson({"remat", kLlama, "--budget", "75%", "--gap",
                                "0.9", "--time-limit", "none"});
  EXPECT_THAT(near["status"], testing::AnyOf("optimal", "feasible"));
  EXPECT_LE(near["gap"], 0.9);
  EXPECT_LE(near["bound_ms"], least * (1 + 1e-9));
  EXPECT_GE(near["recompute_ms"], least * (1 - 1e-9));
}

TEST_F(RematCommandTest, WrongFlagsAreRefused) {
  const auto refuse = [&](std::vector<std::string> flags,
                          const std::vector<std::string>& fragments) {
    flags.insert(flags.begin(), {"remat", kSmall, "-o", "plan.json"});
    ExpectRefused(Acplan(flags), fragments);
    EXPECT_FALSE(Exists("plan.json"));
  };
  PutFile("saved.json", R"({"saved": ["s"]})");
  refuse({}, {"--budget: expected one of --budget (or --kept), --of and"});
  refuse({"--budget", "60%", "--of", "saved.json"},
         {"--budget: expected one of --budget"});
  refuse({"--budget", "much"}, {"--budget: expected a size", "\"much\""});
  refuse({"--budget", "0"}, {"--budget", "less than one byte"});
  refuse({"--budget", "60%", "--gap", "2"}, {"--gap: expected", "'2'"});
  refuse({"--budget", "60%", "--time-limit", "soon"},
         {"--time-limit: expected", "'soon'"});
  refuse({"--budget", "60%", "--frontier", "3"},
         {"--budget: expected one of --budget"});
  for (const std::string points : {"1", "1001", "some"})
    refuse({"--frontier", points}, {"--frontier", "'" + points + "'"});
  refuse({"--of", "none.json"}, {"none.json"});
  refuse({"--of", "saved.json", "--gap", "0.1"},
         {"--gap: cannot be combined with --of"});
  refuse({"--of", "saved.json", "--time-limit", "1"},
         {"--time-limit: cannot be combined with --of"});
  refuse({"--frontier", "3", "--memory"}, {"--memory: needs --json"});
  ExpectRefused(Acplan({"remat"}), {"GRAPH is required"});
  ExpectRefused(Acplan({"remat", "none.json", "--budget", "1GiB"}),
                {"none.json"});
  ExpectRefused(Acplan({"remat", kTiny, "--budget", "60%", "-o", kTiny}),
                {"--output"});
  PutFile("saved.json", R"({"saved": []})");
  ExpectRefused(
      Acplan({"remat", kTiny, "--of", "saved.json", "-o", "saved.json"}),
      {"--output: expected a file other than the input"});
}

TEST_F(RematCommandTest, WrongFilesAreRefused) {
  json graph = json::parse(graph::ReadFile(kSmall));
  graph["nodes"][3].erase("stage");
  PutFile("unstaged.json", graph.dump());
  ExpectRefused(
      Acplan({"remat", "unstaged.json", "--budget", "1GiB", "-o", "p.json"}),
      {"unstaged.json: nodes[3]: expected the key \"stage\""});
  ExpectRefused(Acplan({"remat", ProfilePath("transformer4"), "--budget",
                        "1GiB", "-o", "p.json"}),
                {"format: expected \"acplan.graph\""});
  const auto refuse_saved = [&](const std::string& saved,
                                const std::vector<std::string>& fragments) {
    PutFile("saved.json", saved);
    ExpectRefused(
        Acplan({"remat", kSmall, "--of", "saved.json", "-o", "p.json"}),
        fragments);
  };
  refuse_saved("{}", {"saved.json: expected the key \"saved\""});
  refuse_saved(R"({"saved": ["s", 3]})",
               {"saved.json: saved[1]: expected a string, found 3"});
  refuse_saved(
      R"({"saved": ["q"]})",
      {"saved.json: saved[0]: expected the name of a buffer", "\"q\""});
  refuse_saved(R"({"saved": ["s", "m"]})",
               {"buffer 'm': expected one that may be kept"});
  refuse_saved(R"({"saved": []})", {"node 'seed': it may not run again"});
  EXPECT_FALSE(Exists("p.json"));
}

TEST_F(RematCommandTest, RulesThatForbidEveryPlanAreNamed) {
  json graph = json::parse(graph::ReadFile(kSmall));
  graph["buffers"][3]["keep"] = false;  // the seed's, which may not run again
  PutFile("g.json", graph.dump());
  ExpectRefused(Acplan({"remat", "g.json", "--budget", "1GiB"}),
                {"g.json: node 'seed': it may not run again"});
}

TEST_F(RematCommandTest, TiesOfNodesThatNeedEachOtherAreRefused) {
  json graph = json::parse(graph::ReadFile(kSmall));
  graph["nodes"][4]["tied_to"] = 1;  // it reads what that makes
  PutFile("g.json", graph.dump());
  ExpectRefused(
      Acplan({"remat", "g.json", "--budget", "1GiB", "-o", "p.json"}),
      {"g.json: node 'mm': expected that no node tied to it needs its "
       "results"});
  EXPECT_FALSE(Exists("p.json"));
}

}  // namespace

}  // namespace acplan::cli
