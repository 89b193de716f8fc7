#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

// Plans that skip operators, and whose units are runs of modules, through the
// commands that make and read them.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kSkippingTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";
constexpr char kBlocks[] = "GPT2LMHeadModel.transformer.h.";

const json& TheTrace() {
  static const json trace = json::parse(graph::ReadFile(kSkippingTrace));
  return trace;
}

const json& CallOf(const std::string& fqn) {
  return *std::ranges::find_if(TheTrace()["calls"], [&](const json& call) {
    return TheTrace()["modules"][call["module"].get<size_t>()]["fqn"] == fqn;
  });
}

// Returns the blocks from the first to the last as one unit, or one block, all
// of which runs again.
json Unit(int first, int last) {
  const std::string block = kBlocks + std::to_string(first);
  json unit = {
      {"fqn", first == last ? block : block + "-" + std::to_string(last)},
      {"discard_ratio", 1},
      {"memory_budget", 0}};
  const size_t end = CallOf(kBlocks + std::to_string(last))["end"];
  for (size_t op = CallOf(block)["start"]; op < end; ++op) {
    // "aten.add.Tensor"
    const std::string name = TheTrace()["operators"][op]["name"];
    const size_t begin = name.find('.') + 1;
    unit["ops"].push_back(
        {{"index", unit["ops"].size()},
         {"name", name.substr(begin, name.rfind('.') - begin)},
         {"decision", "recompute"}});
  }
  return unit;
}

json PlanOf(const std::vector<json>& units) {
  return {{"format", "acplan.plan"},    {"version", 1},
          {"model", "GPT2LMHeadModel"}, {"budget_bytes", 1 << 30},
          {"memory_model", "trace"},    {"world_size", 1},
          {"status", "feasible"},       {"modules", units}};
}

class SkipAndSegmentsTest : public CliTest {
 protected:
  // Each command that reads plans refuses them with one line, and writes
  // nothing.
  void ExpectRefusedByAll(const json& plan,
                          const std::vector<std::string>& fragments) const {
    PutFile("plan.json", plan.dump());
    for (std::vector<std::string> command :
         {std::vector<std::string>{"simulate", kSkippingTrace, "plan.json",
                                   "-o", "out.json", "--json"},
          {"check", kSkippingTrace, "plan.json", "--budget", "1GiB"},
          {"show", kSkippingTrace, "plan.json"}}) {
      SCOPED_TRACE(command[0]);
      ExpectRefused(Acplan(command), fragments);
      EXPECT_FALSE(Exists("out.json"));
    }
  }

  Outcome Check(const json& plan) const {
    PutFile("plan.json", plan.dump());
    return Acplan({"check", kSkippingTrace, "plan.json", "--budget", "1GiB"});
  }
};

TEST_F(SkipAndSegmentsTest, SegmentsAreAutoNoneOrALength) {
  const auto plan = [&](const std::string& segments) {
    return Acplan({"plan", kSkippingTrace, "--budget", "37MB", "--decisions",
                   "save,recompute,skip", "--segments", segments, "-o",
                   "plan.json"});
  };
  for (const char* wrong : {"0", "1", "-1", "2.5", "1000001", "all", "NONE",
                            "auto,none", "2 ", "99999999999999999999"}) {
    ExpectRefused(plan(wrong), {"--segments: expected auto, none or a whole "
                                "number from 2 to 1000000, found '",
                                wrong});
  }
  ExpectRefused(plan(""), {"--segments: ", "found an empty one"});
  EXPECT_FALSE(Exists("plan.json"));
  for (const char* right : {"auto", "none", "2", "3", "1000000"}) {
    EXPECT_EQ(plan(right).exit_code, 0) << right;
    EXPECT_TRUE(Exists("plan.json"));
  }
  const std::vector<std::string> on_profile = {
      "plan", ProfilePath("transformer4"), "--budget", "70%"};
  for (const char* segments : {"auto", "2"}) {
    std::vector<std::string> with = on_profile;
    with.insert(with.end(), {"--segments", segments});
    ExpectRefused(Acplan(with),
                  {"--segments: expected none, as segments need a plan on a "
                   "trace under the memory model trace"});
  }
}

TEST_F(SkipAndSegmentsTest, PlansAreWhatOtherCommandsFind) {
  // At the least budget and at one for which a run of blocks is a unit.
  for (const char* budget : {"min", "36.85MB"}) {
    SCOPED_TRACE(budget);
    const json plan = AcplanJson({"plan", kSkippingTrace, "--budget", budget,
                                  "--decisions", "save,recompute,skip",
                                  "--segments", "auto", "--without-host"});
    PutFile("plan.json", plan.dump());
    ASSERT_EQ(plan["status"], "optimal");
    EXPECT_THAT(plan["modules"].dump(), HasSubstr("\"skip\""));
    const json simulated =
        AcplanJson({"simulate", kSkippingTrace, "plan.json"});
    EXPECT_EQ(simulated["planned"]["peak_bytes"], plan["peak_bytes"]);
    EXPECT_DOUBLE_EQ(simulated["planned"]["recompute_ms"],
                     plan["recompute_ms"]);
    const json compared = AcplanJson({"show", kSkippingTrace, "plan.json"});
    EXPECT_EQ(compared["plans"].back()["peak_bytes"], plan["peak_bytes"]);
    EXPECT_DOUBLE_EQ(compared["plans"].back()["recompute_ms"],
                     plan["recompute_ms"]);
    EXPECT_THAT(
        AcplanOut({"check", kSkippingTrace, "plan.json", "--budget",
                   std::to_string(plan["budget_bytes"].get<int64_t>())}),
        HasSubstr("holds: "));
  }
  // No plan fits in a byte less than the least budget.
  const json least = AcplanJson({"plan", kSkippingTrace, "--budget", "min",
                                 "--decisions", "save,recompute,skip"});
  const auto bytes = least["budget_bytes"].get<int64_t>();
  EXPECT_EQ(
      Acplan({"plan", kSkippingTrace, "--budget", std::to_string(bytes - 1),
              "--decisions", "save,recompute,skip"})
          .exit_code,
      3);
}

TEST_F(SkipAndSegmentsTest, UnitsOfSegmentsAreRunsOfTheTrace) {
  EXPECT_THAT(Check(PlanOf({Unit(0, 1)})).out, HasSubstr("holds: 1 unit"));
  EXPECT_THAT(Check(PlanOf({Unit(0, 1), Unit(2, 3)})).out,
              HasSubstr("holds: 2 units"));
  json renamed = Unit(0, 1);
  // These are no runs: there are no such children, or they are in another
  // order.
  for (const char* name : {"1-0", "0-9", "0-0", "a-b", "0-", "-1", "0-1-2"}) {
    SCOPED_TRACE(name);
    renamed["fqn"] = std::string(kBlocks) + name;
    ExpectRefusedByAll(PlanOf({renamed}), {"plan.json: ", renamed["fqn"]});
  }
  renamed["fqn"] = "GPT2LMHeadModel.transformer.wte-wpe";
  ExpectRefusedByAll(PlanOf({renamed}),
                     {renamed["fqn"], "found none of \"wpe\" right after"});
  ExpectRefusedByAll(PlanOf({Unit(0, 1), Unit(1, 2)}),
                     {"h.0-1\" and \"", "h.1-2\": ", "found an overlap"});
  ExpectRefusedByAll(PlanOf({Unit(0, 1), Unit(0, 1)}), {"is listed twice"});
  json shorter = Unit(0, 1);
  shorter["ops"].erase(shorter["ops"].size() - 1);
  ExpectRefusedByAll(PlanOf({shorter}), {"h.0-1", " 73"});
}

// PyTorch can run this, but the planner's rules exclude it.
TEST_F(SkipAndSegmentsTest, UnitsInsideSegmentsAreSimulatedAndBreakARule) {
  for (const json& inner : {Unit(1, 1), Unit(0, 1)}) {
    const json plan = PlanOf({Unit(0, 2), inner});
    const Outcome check = Check(plan);
    EXPECT_EQ(check.exit_code, 1);
    EXPECT_THAT(check.out,
                HasSubstr("lies inside " + std::string(kBlocks) + "0-2"));
    EXPECT_EQ(AcplanJson({"simulate", kSkippingTrace, "plan.json"})["units"],
              2);
  }
}

TEST_F(SkipAndSegmentsTest, WhatIsSkippedMayNotBeNeeded) {
  for (const auto& [first, last] : {std::pair(1, 1), std::pair(1, 2)}) {
    json unit = Unit(first, last);
    unit["ops"].back()["decision"] = "skip";
    EXPECT_THAT(Check(PlanOf({unit})).out, HasSubstr("holds: 1 unit"));
    unit["ops"][0]["decision"] = "skip";
    PutFile("plan.json", PlanOf({unit}).dump());
    for (const char* command : {"simulate", "show"}) {
      ExpectRefused(Acplan({command, kSkippingTrace, "plan.json"}),
                    {"operator 0 (aten.native_layer_norm.default) cannot be "
                     "skipped, because operator 2 (aten.addmm.default), which "
                     "runs again, reads its result"});
    }
    const Outcome check = Check(PlanOf({unit}));
    EXPECT_EQ(check.exit_code, 1);
    EXPECT_THAT(check.out,
                HasSubstr("operator 0 'aten.native_layer_norm.default' is "
                          "skipped, but its result is needed"));
  }
}

TEST_F(SkipAndSegmentsTest, OtherMemoryModelsDoNotKnowWhatSkippingDoes) {
  json unit = Unit(1, 1);
  unit["ops"].back()["decision"] = "skip";
  PutFile("plan.json", PlanOf({unit}).dump());
  for (const char* model : {"snapshot", "torch"}) {
    const Outcome compared =
        Acplan({"show", kSkippingTrace, "plan.json", "--memory-model", model});
    ExpectRefused(compared,
                  {"plan.json: GPT2LMHeadModel.transformer.h.1: "
                   "operator ",
                   " is skipped, an effect that is known on traces only"});
    EXPECT_EQ(Acplan({"check", kSkippingTrace, "plan.json", "--budget", "1GiB",
                      "--memory-model", model})
                  .exit_code,
              1);
  }
}

TEST_F(SkipAndSegmentsTest, KeptResultsAreOfSavedOperators) {
  json unit = Unit(1, 1);
  json& norm = unit["ops"][0];  // a result and two statistics
  norm["results"] = {0};
  ExpectRefusedByAll(PlanOf({unit}),
                     {"ops[0].results: needs an operator that is saved or "
                      "offloaded, found one to recompute"});
  norm["decision"] = "save";
  norm["results"] = {3};
  ExpectRefusedByAll(PlanOf({unit}), {"operator 0: expected results of the 3 "
                                      "that it makes, found index 3"});
  norm["results"] = {1, 0};
  ExpectRefusedByAll(PlanOf({unit}),
                     {"results[1]: expected an index above 1, found 0"});
  norm["results"] = {int64_t{1} << 40};
  ExpectRefusedByAll(PlanOf({unit}), {"results[0]: expected a whole number "});
  // Backward asks for the statistics.
  norm["results"] = {0};
  PutFile("plan.json", PlanOf({unit}).dump());
  ExpectRefused(Acplan({"simulate", kSkippingTrace, "plan.json"}),
                {"operator 0 (aten.native_layer_norm.default) must keep "
                 "another result, because the backward pass needs it"});
  EXPECT_THAT(Check(PlanOf({unit})).out,
              HasSubstr("does not keep a result that is needed"));
  norm["results"] = {0, 1, 2};
  EXPECT_THAT(Check(PlanOf({unit})).out, Not(HasSubstr("needed")));
}

}  // namespace
}  // namespace acplan::cli
