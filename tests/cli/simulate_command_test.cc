#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kSimulatedTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

const json& SimulatedTrace() {
  static const json trace = json::parse(graph::ReadFile(kSimulatedTrace));
  return trace;
}

// Returns a unit with these decisions; the names as in the trace.
json SimulatedUnit(const std::string& path, const std::vector<int>& saved) {
  const std::string fqn = "GPT2LMHeadModel." + path;
  json unit = {{"fqn", fqn}, {"discard_ratio", 1}, {"memory_budget", 0}};
  for (const json& call : SimulatedTrace()["calls"]) {
    if (SimulatedTrace()["modules"][call["module"].get<size_t>()]["fqn"] !=
        fqn) {
      continue;
    }
    for (size_t op = call["start"]; op < call["end"]; ++op) {
      const int index = static_cast<int>(unit["ops"].size());
      unit["ops"].push_back(
          {{"index", index},
           {"name", SimulatedTrace()["operators"][op]["name"]},
           {"decision",
            std::ranges::count(saved, index) ? "save" : "recompute"}});
    }
  }
  return unit;
}

json SimulatedPlan(const std::vector<json>& units) {
  return {{"format", "acplan.plan"},    {"version", 1},
          {"model", "GPT2LMHeadModel"}, {"budget_bytes", 1 << 30},
          {"memory_model", "snapshot"}, {"world_size", 1},
          {"status", "feasible"},       {"modules", units}};
}

class SimulateCommandTest : public CliTest {
 protected:
  Outcome With(const json& plan, std::vector<std::string> more = {}) const {
    PutFile("plan.json", plan.dump());
    more.insert(more.begin(), {"simulate", kSimulatedTrace, "plan.json"});
    return Acplan(more);
  }
};

TEST_F(SimulateCommandTest, WithoutAPlanIsTheTrace) {
  const json answer = AcplanJson({"simulate", kSimulatedTrace});
  EXPECT_EQ(answer["baseline"]["peak_bytes"], answer["measured_peak_bytes"]);
  EXPECT_EQ(answer["baseline"]["peak_bytes"],
            SimulatedTrace()["measured"]["peak_bytes"]);
  EXPECT_EQ(answer["baseline"]["operators"],
            SimulatedTrace()["operators"].size());
  EXPECT_EQ(answer["baseline"]["recomputed_operators"], 0);
  EXPECT_FALSE(answer.contains("planned"));
  int64_t sum = 0;
  for (const json& bytes : answer["baseline"]["by_category"]) {
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, answer["baseline"]["peak_bytes"]);
}

TEST_F(SimulateCommandTest, APlanIsSetBesideTheBaseline) {
  PutFile("plan.json", SimulatedPlan({SimulatedUnit("transformer.h.0", {}),
                                      SimulatedUnit("transformer.h.2", {2})})
                           .dump());
  const json answer = AcplanJson({"simulate", kSimulatedTrace, "plan.json"});
  EXPECT_EQ(answer["units"], 2);
  EXPECT_GT(answer["planned"]["recomputed_operators"], 50);
  EXPECT_GT(answer["planned"]["recompute_ms"], 0);
  EXPECT_LT(answer["planned"]["peak_bytes"], answer["baseline"]["peak_bytes"]);
  EXPECT_EQ(answer["planned"]["operators"].get<int>(),
            answer["baseline"]["operators"].get<int>() +
                answer["planned"]["recomputed_operators"].get<int>());
  const std::string text =
      AcplanOut({"simulate", kSimulatedTrace, "plan.json"});
  EXPECT_THAT(text,
              AllOf(StartsWith("GPT2LMHeadModel, "),
                    HasSubstr("2 units checkpointed: "), HasSubstr("planned"),
                    HasSubstr("activation"), HasSubstr("planned peak of ")));
}

TEST_F(SimulateCommandTest, WhatIsSkippedDoesNotRunAgain) {
  // Nothing in a block needs its last operator, the residual.
  json unit = SimulatedUnit("transformer.h.1", {});
  const json whole = json::parse(With(SimulatedPlan({unit}), {"--json"}).out);
  unit["ops"].back()["decision"] = "skip";
  PutFile("plan.json", SimulatedPlan({unit}).dump());
  const json skipping = AcplanJson({"simulate", kSimulatedTrace, "plan.json"});
  EXPECT_LE(skipping["planned"]["recompute_ms"],
            whole["planned"]["recompute_ms"]);
  unit["ops"].front()["decision"] = "skip";
  ExpectRefused(With(SimulatedPlan({unit})),
                {"module 'GPT2LMHeadModel.transformer.h.1': ", "operator 0 (",
                 ") cannot be skipped, because ", " its result; save it"});
  unit["ops"].front()["decision"] = "save";
  unit["ops"].front()["results"] = {7};
  ExpectRefused(With(SimulatedPlan({unit})),
                {"plan.json: \"GPT2LMHeadModel.transformer.h.1\": operator 0: "
                 "expected results of the ",
                 "found index 7"});
}

TEST_F(SimulateCommandTest, TheTimelineHasEveryOperator) {
  const Outcome outcome =
      With(SimulatedPlan({SimulatedUnit("transformer.h.1", {})}),
           {"--timeline", "steps.csv", "-o", "answer.json", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(json::parse(Read("answer.json")), answer);
  const std::vector<std::string> lines = Lines(Read("steps.csv"));
  EXPECT_EQ(lines.front(), "step,operator,name,phase,module,live_bytes");
  ASSERT_EQ(lines.size(), answer["planned"]["operators"].get<size_t>() + 1);
  int64_t peak = 0;
  int repeated = 0;
  for (size_t k = 1; k < lines.size(); ++k) {
    EXPECT_THAT(lines[k], StartsWith(std::to_string(k - 1) + ","));
    peak = std::max<int64_t>(
        peak, std::stoll(lines[k].substr(lines[k].rfind(',') + 1)));
    repeated += lines[k].find(",recompute,") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(peak, answer["planned"]["peak_bytes"]);
  EXPECT_EQ(repeated, answer["planned"]["recomputed_operators"]);
}

TEST_F(SimulateCommandTest, RefusesToWriteBothToOneFile) {
  ExpectRefused(
      With(SimulatedPlan({}), {"--timeline", "a.json", "-o", "a.json"}),
      {"--output: expected a file other than --timeline"});
  EXPECT_FALSE(Exists("a.json"));
}

TEST_F(SimulateCommandTest, OperatorsMayBeNamedShortly) {
  json unit = SimulatedUnit("transformer.h.1", {2});
  PutFile("full.json", SimulatedPlan({unit}).dump());
  for (json& op : unit["ops"]) {
    const std::string name = op["name"];
    const size_t dot = name.find('.');
    op["name"] = name.substr(dot + 1, name.rfind('.') - dot - 1);
  }
  PutFile("short.json", SimulatedPlan({unit}).dump());
  EXPECT_EQ(AcplanJson({"simulate", kSimulatedTrace, "full.json"}),
            AcplanJson({"simulate", kSimulatedTrace, "short.json"}));
}

TEST_F(SimulateCommandTest, PlansThatDoNotFitTheTraceAreRefused) {
  ExpectRefused(With(SimulatedPlan({SimulatedUnit("transformer.h.9", {})})),
                {"plan.json: expected a module of the trace, found "
                 "\"GPT2LMHeadModel.transformer.h.9\"; nearest: "});
  const json unit = SimulatedUnit("transformer.h.1", {});
  json few = unit;
  few["ops"].erase(3);
  for (size_t k = 0; k < few["ops"].size(); ++k) few["ops"][k]["index"] = k;
  ExpectRefused(With(SimulatedPlan({few})),
                {"plan.json: ", "operators of the trace"});
  json other = unit;
  other["ops"][2]["name"] = "aten.mul.Tensor";
  ExpectRefused(With(SimulatedPlan({other})),
                {"plan.json: ", "operator 2: expected", "aten.mul.Tensor"});
  json ratio = unit;
  ratio.erase("ops");
  ratio["discard_ratio"] = 0.5;
  ratio["memory_budget"] = 0.5;
  ExpectRefused(With(SimulatedPlan({ratio})),
                {"plan.json: ", "expected a decision for each operator"});
  json of_other_model = SimulatedPlan({unit});
  of_other_model["model"] = "Llama";
  ExpectRefused(With(of_other_model), {"plan.json: model: expected"});
  json nothing = SimulatedPlan({});
  nothing["status"] = "infeasible";
  ExpectRefused(With(nothing), {"plan.json: status: expected a plan"});
}

TEST_F(SimulateCommandTest, TheTimelineQuotesNamesWithCommasAndQuotes) {
  json trace = json::parse(graph::ReadFile(ACPLAN_SEED_TRACE));
  trace["modules"][1]["fqn"] = "Net.a,\"b";
  PutFile("trace.json", trace.dump());
  AcplanOut({"simulate", "trace.json", "--timeline", "steps.csv"});
  EXPECT_THAT(Read("steps.csv"), HasSubstr(",\"Net.a,\"\"b\","));
}

TEST_F(SimulateCommandTest, RunsOnPyTorchsAllocator) {
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", kSimulatedTrace, "--json"});
    const Outcome outcome = Acplan(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json plain = run({});
  EXPECT_FALSE(plain.contains("run"));
  const json native = run({"--allocator", "native"});
  EXPECT_EQ(native["baseline"], plain["baseline"]);
  const json& of_run = native["run"];
  EXPECT_EQ(of_run["torch_version"], "2.15");
  EXPECT_TRUE(of_run["device_bytes"].is_null());
  EXPECT_GT(of_run["period"], 0);
  EXPECT_GE(of_run["allocated_bytes"], plain["baseline"]["peak_bytes"]);
  EXPECT_GE(of_run["reserved_bytes"], of_run["allocated_bytes"]);
  EXPECT_TRUE(of_run["failure"].is_null());
  const int64_t least = of_run["least_device_bytes"];

  const json first =
      run({"--allocator", "native", "--optimizer-state", "first"})["run"];
  EXPECT_NE(first, of_run);

  const json fits = run({"--device-memory", std::to_string(least)})["run"];
  EXPECT_TRUE(fits["failure"].is_null());
  EXPECT_EQ(fits["device_bytes"], least);
  const json fails = run({"--device-memory", std::to_string(least - 1),
                          "--without-least-device"})["run"];
  EXPECT_FALSE(fails.contains("least_device_bytes"));
  const json& failure = fails["failure"];
  EXPECT_GT(failure["bytes"], 0);
  EXPECT_GE(failure["iteration"], 1);
  EXPECT_LE(failure["reserved_bytes"], least - 1);
  EXPECT_EQ(fails["peak"]["event"], failure["event"]);
}

TEST_F(SimulateCommandTest, SaysHowTheRunEnds) {
  const Outcome fits =
      Acplan({"simulate", kSimulatedTrace, "--allocator", "native"});
  EXPECT_THAT(
      fits.out,
      AllOf(HasSubstr("PyTorch 2.15, native segments, a device without limit"),
            HasSubstr("least device: "),
            HasSubstr("later ones repeat the last"),
            HasSubstr("At the peak of reserved bytes, at iteration ")));
  const Outcome fails = Acplan({"simulate", kSimulatedTrace, "--device-memory",
                                "30MiB", "--timeline", "events.csv"});
  EXPECT_EQ(fails.exit_code, 0);
  EXPECT_THAT(fails.out, AllOf(HasSubstr("out of memory: "),
                               HasSubstr("At the failure, at iteration 1")));
  EXPECT_THAT(
      Read("events.csv"),
      StartsWith("event,iteration,microbatch,step,operator,kind,id,bytes,"
                 "stream,segment,offset,allocated_bytes,reserved_bytes,"
                 "retries\n"
                 "0,0,1,-1,,allocate,0,"));
  ExpectRefused(
      Acplan({"simulate", kSimulatedTrace, "--optimizer-state", "last"}),
      {"--optimizer-state: expected update or first, found \"last\""});
}

// The needs that check prints are those that simulate prints with each setting.
TEST_F(SimulateCommandTest, CheckSaysTheSame) {
  const std::string trace = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";
  AcplanJson({"plan", trace, "--budget", "80%", "-q", "-o", "plan.json"});
  const auto checked =
      AcplanJson({"check", trace, "plan.json", "--budget", "80%"})["on_device"];
  ASSERT_EQ(checked.size(), size_t{4});
  for (const auto& need : checked) {
    const auto run = AcplanJson({"simulate", trace, "plan.json", "--allocator",
                                 need["allocator"], "--optimizer-state",
                                 need["optimizer_state"]})["run"];
    for (const char* key :
         {"allocated_bytes", "reserved_bytes", "least_device_bytes"}) {
      EXPECT_EQ(need[key], run[key]) << need.dump();
    }
  }
  EXPECT_THAT(Acplan({"check", trace, "plan.json", "--budget", "80%"}).out,
              HasSubstr("state first, expandable segments"));
}

TEST_F(SimulateCommandTest, EmptiesTheCache) {
  Acplan({"simulate", kSimulatedTrace, "--empty-cache",
          "after-forward,before-update", "--model-order", "largest-first",
          "--timeline", "events.csv"});
  EXPECT_THAT(Read("events.csv"), HasSubstr(",empty_cache,-1,0,0,,,"));
  ExpectRefused(Acplan({"simulate", kSimulatedTrace, "--empty-cache", "never"}),
                {"--empty-cache: expected some of after-forward, "
                 "before-update, before-first-update, found \"never\""});
  ExpectRefused(
      Acplan({"simulate", kSimulatedTrace, "--model-order", "random"}),
      {"--model-order: expected modules or largest-first"});
  ExpectRefused(Acplan({"simulate", "--events", "e", "--empty-cache", "never"}),
                {"--empty-cache: needs TRACE"});
}

TEST_F(SimulateCommandTest, OtherFilesAreRefused) {
  ExpectRefused(Acplan({"simulate", ProfilePath("transformer4")}),
                {"format: expected", "acplan.trace"});
  ExpectRefused(Acplan({"simulate", "none.json"}), {"none.json"});
}

}  // namespace

}  // namespace acplan::cli
