#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "costmodel/planning/plan_record.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const std::string kModel = ACPLAN_DATA_DIR "/models/gpt3-175B.json";
const std::string kStrategy =
    ACPLAN_DATA_DIR "/validation/seqsel/tab5/gpt3-175B_seqsel.json";
const std::string kSystem = ACPLAN_DATA_DIR "/systems/a100_80g.json";

class LlmPlanCommandTest : public CliTest {
 protected:
  static std::vector<std::string> Command(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"llm-plan", kModel, kStrategy,
                                          kSystem};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Plans the strategy with changes, in exe.json.
  Outcome Changed(const std::vector<Edit>& edits,
                  const std::vector<std::string>& more = {}) const {
    Put("exe.json", Edited(json::parse(graph::ReadFile(kStrategy)), edits));
    std::vector<std::string> arguments = Command(more);
    arguments[2] = "exe.json";
    return Acplan(arguments);
  }
};

double Most(const json& plan) {
  double most = 0;
  for (const json& stage : plan.at("stages")) {
    most = std::max(most, stage.at("memory").at("tier1").get<double>());
  }
  return most;
}

TEST_F(LlmPlanCommandTest, ShowsThePlan) {
  const std::string text = AcplanOut(Command({"--color=never"}));
  for (const char* part :
       {"gpt3-175B on a100_80g: 64 processors, tensor 8 x pipeline 8",
        "budget 80.000 GiB a processor", "stage 0", "blocks recompute",
        "in flight", "time of a batch", "pipeline bubble", "the plan's time",
        "attn_only + seq_par_ag_redo", "optimal: no plan is faster",
        "the fastest fixed policy that fits"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("Fork")));
}

TEST_F(LlmPlanCommandTest, ShowsTheFirstStageAlone) {
  const std::string all = AcplanOut(Command({"--color=never"}));
  const std::string first =
      AcplanOut(Command({"--color=never", "--stages", "first"}));
  EXPECT_THAT(all, ContainsRegex("\n +7 +12 "));
  EXPECT_THAT(first, Not(ContainsRegex("\n +7 +12 ")));
  EXPECT_THAT(first, HasSubstr("stage 0"));
  EXPECT_EQ(Lines(all).back(), Lines(first).back());
  // A file has them all.
  EXPECT_EQ(
      AcplanJson(Command({"--stages", "first", "--json"})).at("stages").size(),
      8);
}

TEST_F(LlmPlanCommandTest, WritesTheFileThatItPrints) {
  const json printed = AcplanJson(Command({"--json"}));
  AcplanOut(Command({"-o", "plan.json"}));
  AcplanOut(Command({"-o", "plan.json.gz"}));
  EXPECT_EQ(json::parse(Read("plan.json")), printed);
  EXPECT_EQ(json::parse(graph::ReadFile(folder() / "plan.json.gz")), printed);
  EXPECT_EQ(printed.at("status"), "optimal");
  EXPECT_EQ(printed.at("application"), "gpt3-175B");
  EXPECT_EQ(printed.at("budget_bytes"), 85899345920);
  const costmodel::PlanRecord record =
      costmodel::ParsePlanRecord(Read("plan.json"), "plan.json");
  EXPECT_EQ(record.stages.size(), 8);
  EXPECT_EQ(record.fixed.size(), 5);
}

// The fixed policies are what `llm` computes.
TEST_F(LlmPlanCommandTest, FixedPoliciesAgreeWithLlm) {
  for (const std::string mode : {"corrected", "calculon"}) {
    const json plan = AcplanJson(Command({"--json", "--mode", mode}));
    int compared = 0;
    for (const json& fixed : plan.at("fixed")) {
      Put("exe.json",
          Edited(json::parse(graph::ReadFile(kStrategy)),
                 {{"/activation_recompute", fixed.at("policy").dump()},
                  {"/seq_par_ag_redo", fixed.at("seq_par_ag_redo").dump()}}));
      const std::vector<std::string> arguments{
          "llm", kModel, "exe.json", kSystem, "--json", "--mode", mode};
      if (!fixed.at("fits")) {
        EXPECT_EQ(Acplan(arguments).exit_code, 3);
        continue;
      }
      const json statistics = AcplanJson(arguments);
      EXPECT_EQ(statistics.at("total_time"), fixed.at("total_time"));
      EXPECT_EQ(statistics.at("proc_mem_tier1_cap_req"),
                fixed.at("memory").at("tier1"));
      EXPECT_LE(plan.at("total_time"), fixed.at("total_time"));
      ++compared;
    }
    EXPECT_GT(compared, 1) << mode;
  }
}

TEST_F(LlmPlanCommandTest, TheBudgetReplacesTheCapacity) {
  double last = 1e30;
  for (const std::string budget : {"50GiB", "60GiB", "80GiB", "1TiB"}) {
    const json plan = AcplanJson(Command({"--json", "--budget", budget}));
    EXPECT_LE(Most(plan), plan.at("budget_bytes"));
    EXPECT_LE(plan.at("total_time"), last);
    last = plan.at("total_time");
  }
  EXPECT_EQ(AcplanOut(Command({"--json", "--budget", "80GiB"})),
            AcplanOut(Command({"--json"})));
  // Nothing is recomputed where there is memory for all.
  EXPECT_THAT(AcplanOut(Command({"--budget", "1TiB", "--color=never"})),
              AllOf(HasSubstr("stages 0 to 7, each\n  12 of 12 blocks "
                              "recompute nothing\n"),
                    HasSubstr("as fast as none")));
}

// Gradients' communication that interleaved chunks hide leaves a gap.
TEST_F(LlmPlanCommandTest, WhatIsNotProvenHasAGap) {
  const std::vector<Edit> edits = {{"/num_procs", "128"},
                                   {"/data_par", "2"},
                                   {"/batch_size", "16"},
                                   {"/data_par_overlap", "true"},
                                   {"/optimizer_sharding", "true"}};
  const json plan = json::parse(Changed(edits, {"--json"}).out);
  const Outcome outcome = Changed(edits, {"--color=never"});
  EXPECT_EQ(outcome.exit_code, 0);
  if (plan.at("status") == "optimal") {
    EXPECT_THAT(outcome.out, HasSubstr("optimal: no plan is faster\n"));
  } else {
    EXPECT_LT(plan.at("bound"), plan.at("total_time"));
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("feasible: no plan is faster than "),
                      HasSubstr(" (gap "), Not(HasSubstr("optimal"))));
  }
}

TEST_F(LlmPlanCommandTest, OffloadingShowsBothTiers) {
  const Outcome outcome = Changed({{"/activations_offload", "true"},
                                   {"/weight_offload", "true"},
                                   {"/optimizer_offload", "true"}},
                                  {"--color=never"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("tier 2"),
            HasSubstr("12 of 12 blocks recompute all, their input alone")));
}

TEST_F(LlmPlanCommandTest, InfeasibleSaysWhatIsMissing) {
  const Outcome outcome = Acplan(
      Command({"--budget", "40GiB", "-o", "plan.json", "--color=never"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.err, "");
  for (const char* part :
       {"infeasible: no plan fits in 40.00 GiB (42,949,672,960 bytes)",
        "the least that a plan needs: ", "more than there is", "missing",
        "optimizer", "weight gradients"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const json plan = json::parse(Read("plan.json"));
  EXPECT_EQ(plan.at("status"), "infeasible");
  EXPECT_EQ(plan.at("stages").size(), 8);

  // That much is enough, and a byte less is not.
  const auto least = static_cast<int64_t>(Most(plan));
  const json met =
      AcplanJson(Command({"--json", "--budget", std::to_string(least + 1)}));
  EXPECT_NE(met.at("status"), "infeasible");
  const Outcome missed =
      Acplan(Command({"--json", "--budget", std::to_string(least - 1)}));
  EXPECT_EQ(missed.exit_code, 3);
  EXPECT_EQ(json::parse(missed.out).at("status"), "infeasible");
}

TEST_F(LlmPlanCommandTest, CalculonModeComparesFixedPolicies) {
  const std::vector<std::string> mode{"--mode", "calculon", "--color=never"};
  const std::string text = AcplanOut(Command(mode));
  EXPECT_THAT(text, HasSubstr("recomputation is no sum over operators"));
  EXPECT_THAT(text, HasSubstr("the fastest fixed policy that fits"));
  EXPECT_THAT(text, Not(HasSubstr("optimal")));
  const json plan = AcplanJson(Command({"--mode", "calculon", "--json"}));
  EXPECT_EQ(plan.at("mode"), "calculon");
  EXPECT_EQ(plan.at("status"), "feasible");
  EXPECT_TRUE(plan.at("stages").empty());
  EXPECT_TRUE(plan.at("bound").is_null());

  const Outcome outcome =
      Acplan(Command({"--mode", "calculon", "--budget", "30GiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("no fixed policy fits in 30.00 GiB"));
  EXPECT_THAT(outcome.out, HasSubstr("full needs least"));
}

TEST_F(LlmPlanCommandTest, WhatTheStrategyRecomputesDoesNotMatter) {
  const auto without_execution = [](json plan) {
    plan.erase("execution");
    return plan;
  };
  const json plan = without_execution(AcplanJson(Command({"--json"})));
  const Outcome full = Changed(
      {{"/activation_recompute", "\"full\""}, {"/seq_par_ag_redo", "false"}},
      {"--json"});
  EXPECT_EQ(without_execution(json::parse(full.out)), plan);
}

TEST_F(LlmPlanCommandTest, TakesPlansAndResultsAsStrategies) {
  AcplanOut(Command({"--budget", "60GiB", "-o", "plan.json"}));
  const json execution = json::parse(graph::ReadFile(kStrategy));
  Put("best.json", json{{"0", {{"execution", {{"not", "read"}}}}},
                        {"1", {{"execution", execution}}}}
                       .dump());
  const auto plan = [&](const std::string& strategy) {
    return AcplanJson({"llm-plan", kModel, strategy, kSystem, "--json"});
  };
  EXPECT_EQ(plan("plan.json"), json::parse(Read("plan.json")));
  EXPECT_EQ(plan("best.json:1"), AcplanJson(Command({"--json"})));
  EXPECT_EQ(AcplanJson({"llm-plan", kModel, "plan.json", kSystem, "--json",
                        "--budget", "80GiB"}),
            plan("best.json:1"));
  ExpectRefused(Acplan({"llm-plan", kModel, "best.json:2", kSystem}),
                {"best.json", "2"});
  ExpectRefused(Acplan({"llm-plan", kModel, kStrategy + ":0", kSystem}),
                {"\"0\" is a rank"});
  ExpectRefused(
      Acplan({"llm-plan", kModel, "best.json:1", kSystem, "-o", "best.json"}),
      {"best.json", "another file than the input"});
}

// The memory that a plan takes is enough for it.
TEST_F(LlmPlanCommandTest, ItsOwnPeakIsEnough) {
  const json plan = AcplanJson(Command({"--json", "--budget", "60GiB"}));
  const json again = AcplanJson(Command(
      {"--json", "--budget", fmt::format("{:.0f}", std::ceil(Most(plan)))}));
  EXPECT_EQ(again.at("total_time"), plan.at("total_time"));
}

TEST_F(LlmPlanCommandTest, RulesAreLikeThoseOfLlm) {
  const auto llm = [&] { return Acplan({"llm", kModel, "exe.json", kSystem}); };
  const Outcome broken =
      Changed({{"/pipeline_interleaving", "13"}}, {"-o", "plan.json"});
  EXPECT_EQ(broken.exit_code, 3);
  EXPECT_EQ(broken.out, llm().out);
  EXPECT_EQ(broken.err, llm().err);
  const Outcome contradiction =
      Changed({{"/tensor_par_net", "7"}}, {"-o", "plan.json"});
  ExpectRefused(contradiction, {"exe.json: tensor_par_net: expected a tier"});
  EXPECT_EQ(contradiction.err, llm().err);
  EXPECT_FALSE(Exists("plan.json"));
}

TEST_F(LlmPlanCommandTest, RefusesBadInput) {
  const std::vector<std::string> out{"-o", "plan.json"};
  const auto extended = [&](std::vector<std::string> more) {
    more.insert(more.end(), out.begin(), out.end());
    return Acplan(Command(more));
  };
  ExpectRefused(extended({"--budget", "0"}), {"--budget"});
  ExpectRefused(extended({"--budget", "75%"}), {"--budget", "75%"});
  ExpectRefused(extended({"--budget", "80 potatoes"}),
                {"--budget", "potatoes"});
  ExpectRefused(extended({"--mode", "exact"}), {"--mode", "\"exact\""});
  ExpectRefused(extended({"--correct", "sharded_checkpoints"}),
                {"--correct", "--mode corrected", "sharded_checkpoints"});
  ExpectRefused(extended({"--stages", "some"}), {"--stages", "\"some\""});
  ExpectRefused(extended({"--stagess", "all"}), {"did you mean --stages?"});
  ExpectRefused(Acplan({"llm-plan", kModel, kStrategy}), {"SYSTEM"});
  ExpectRefused(Acplan({"llm-plan", "none.json", kStrategy, kSystem}),
                {"none.json"});
  ExpectRefused(
      Changed({{"/training", "false"}, {"/activation_recompute", "\"none\""}},
              out),
      {"exe.json: training: expected true", "found false"});
  ExpectRefused(Changed({{"/tensor_par", "\"8\""}}, out),
                {"exe.json: tensor_par"});
  EXPECT_FALSE(Exists("plan.json"));
  ExpectRefused(Acplan(Command({"-o", "plan.txt"})), {"plan.txt", ".json"});
  ExpectRefused(Acplan(Command({"-o", "none/plan.json"})), {"none/plan.json"});
  Put("exe.json", graph::ReadFile(kStrategy));
  ExpectRefused(
      Acplan({"llm-plan", kModel, "exe.json", kSystem, "-o", "exe.json"}),
      {"exe.json", "another file than the input"});
}

}  // namespace

}  // namespace acplan::cli
