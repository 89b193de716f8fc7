#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "problems/plan/plan.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int64_t kReserveBytes = int64_t{1} << 30;

class CommandsTest : public CliTest {
 protected:
  void PlanTo(const std::string& file, const std::string& budget,
              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"plan", profile_, "--budget",
                                       budget, "-o",     file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    AcplanOut(arguments);
  }

  const std::string profile_ = ProfilePath("gpt2_small");
};

TEST_F(CommandsTest, CheckAcceptsEveryPlan) {
  for (const auto& [memory_model, more] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"snapshot", {}},
           {"torch", {}},
           {"snapshot", {"--tradeoff", "profile"}},
           {"torch", {"--tradeoff", "profile"}},
           {"snapshot", {"--tradeoff", "fit"}},
           {"torch", {"--granularity", "module"}},
           {"snapshot", {"--save", "addmm", "--recompute", "tanh"}}}) {
    std::vector<std::string> arguments{"--memory-model", memory_model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    PlanTo("plan.json", "10GiB", arguments);
    const std::string out =
        AcplanOut({"check", profile_, "plan.json", "--budget", "10GiB"});
    EXPECT_THAT(out, StartsWith("holds: "));
    const json check =
        AcplanJson({"check", profile_, "plan.json", "--budget", "10GiB"});
    EXPECT_EQ(check["holds"], true);
    EXPECT_FALSE(check.contains("broken_rule"));
    EXPECT_EQ(check["memory_model"], memory_model);
    const json plan = json::parse(Read("plan.json"));
    EXPECT_EQ(check["peak_bytes"], plan["peak_bytes"]);
    EXPECT_EQ(check["peak_module"], plan["peak_module"]);
    EXPECT_EQ(check["recompute_ms"], plan["recompute_ms"]);
  }
}

TEST_F(CommandsTest, CheckNamesTheBrokenRule) {
  PlanTo("plan.json", "10GiB", {"--tradeoff", "profile"});
  const auto broken = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"check", profile_, "plan.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome table = Acplan(arguments);
    EXPECT_EQ(table.exit_code, 1);
    EXPECT_EQ(table.err, "");
    EXPECT_THAT(table.out, StartsWith("broken: "));
    EXPECT_EQ(Lines(table.out).size(), 1);
    arguments.emplace_back("--json");
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, 1);
    const json check = json::parse(outcome.out);
    EXPECT_EQ(check["holds"], false);
    EXPECT_EQ("broken: " + check["broken_rule"].get<std::string>() + "\n",
              table.out);
    return table.out;
  };
  EXPECT_THAT(broken({"--budget", "9GiB"}),
              AllOf(HasSubstr("over the budget at GPT2LMHeadModel (backward): "
                              "10737418"),
                    HasSubstr("9663676416 allowed")));
  EXPECT_THAT(broken({"--budget", "10GiB", "--reserve", "1MiB"}),
              HasSubstr("over the budget"));
  EXPECT_THAT(broken({"--budget", "10GiB", "--max-units", "2"}),
              HasSubstr("more than the 2 allowed"));
  EXPECT_THAT(
      broken({"--budget", "10GiB", "--ac-units", "GPT2LMHeadModel.lm_head"}),
      HasSubstr("GPT2LMHeadModel.transformer.h.0 is not among the given AC "
                "units"));
  EXPECT_THAT(broken({"--budget", "10GiB", "--fsdp-units",
                      "GPT2LMHeadModel.transformer.h.3.mlp"}),
              HasSubstr("GPT2LMHeadModel.transformer.h.3 contains the FSDP "
                        "unit GPT2LMHeadModel.transformer.h.3.mlp"));
}

TEST_F(CommandsTest, CheckFindsEveryFalseClaim) {
  PlanTo("good.json", "10GiB", {"--tradeoff", "profile"});
  const json good = json::parse(Read("good.json"));
  const std::vector<std::pair<std::vector<Edit>, std::string>> claims{
      {{{"/peak_bytes", "5"}}, "the plan says its peak is 5 bytes"},
      {{{"/recompute_ms", "0.5"}}, "the plan says it recomputes 0.5 ms"},
      {{{"/modules/1/discarded_bytes", "77"}},
       "the plan says 77 bytes are discarded"},
      {{{"/modules/1/fqn", "\"GPT2LMHeadModel.transformer.h.0.mlp\""},
        {"/modules/1/discarded_bytes", {}}},
       "AC units must not be nested"},
      {{{"/modules/1/fqn", "\"GPT2LMHeadModel.lm_head\""}}, "is a leaf"},
      {{{"/modules/0/discard_ratio", "0"}}, "saves no memory"}};
  for (const auto& [edits, rule] : claims) {
    PutFile("plan.json", Edited(good, edits));
    const Outcome outcome =
        Acplan({"check", profile_, "plan.json", "--budget", "10GiB"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.out, HasSubstr(rule));
  }
}

// The operators of a unit in which some are saved and some recomputed.
TEST_F(CommandsTest, CheckFindsWhatWasDoneToOperators) {
  PlanTo("good.json", "10GiB");
  const json good = json::parse(Read("good.json"));
  const size_t unit = 1;
  ASSERT_EQ(good["modules"][unit]["fqn"],
            "GPT2LMHeadModel.transformer.h.0.mlp");
  const json& ops = good["modules"][unit]["ops"];
  const auto find = [&](const std::string& name, const std::string& decision) {
    for (size_t k = 0; k < ops.size(); ++k) {
      if (ops[k]["name"] == name && ops[k]["decision"] == decision) return k;
    }
    ADD_FAILURE() << name;
    return size_t{0};
  };
  const std::string unit_path = fmt::format("/modules/{}", unit);
  const auto path = [&](size_t op, const std::string& key) {
    return fmt::format("{}/ops/{}/{}", unit_path, op, key);
  };
  const auto check = [&](const std::vector<Edit>& edits) {
    PutFile("plan.json", Edited(good, edits));
    return Acplan({"check", profile_, "plan.json", "--budget", "10GiB"});
  };
  EXPECT_EQ(check({}).exit_code, 0);

  // A flipped decision frees or takes memory, or breaks a rule.
  for (size_t op = 0; op < ops.size(); ++op) {
    if (ops[op]["name"] == "add" || ops[op]["name"] == "mul" ||
        ops[op]["name"] == "pow" || ops[op]["name"] == "tanh") {
      continue;  // some discard nothing
    }
    const bool is_saved = ops[op]["decision"] == "save";
    const Outcome outcome = check(
        {{path(op, "decision"), is_saved ? "\"recompute\"" : "\"save\""}});
    EXPECT_EQ(outcome.exit_code, 1) << ops[op];
    EXPECT_THAT(outcome.out, StartsWith("broken: "));
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_THAT(
      check({{path(find("view", "recompute"), "decision"), "\"save\""}}).out,
      HasSubstr("'view' is view-like and must be recomputed"));
  EXPECT_THAT(
      check({{path(find("addmm", "save"), "decision"), "\"recompute\""}}).out,
      HasSubstr("h.0.mlp: the plan says its discard ratio is "));
  EXPECT_THAT(check({{unit_path + "/discard_ratio", "0.5"},
                     {unit_path + "/memory_budget", "0.5"}})
                  .out,
              HasSubstr("the plan says its discard ratio is 0.5; its "
                        "operators make it 0.8648"));

  // Operators that the profile lacks make it another model's plan.
  const std::string other = "(plan for another model?)";
  ExpectRefused(check({{path(2, "name"), "\"conv\""}}),
                {"plan.json: ",
                 "GPT2LMHeadModel.transformer.h.0.mlp: operator "
                 "2 is 2 'conv' in the plan, '",
                 other});
  ExpectRefused(check({{path(2, "index"), "3"}}), {"operator 2 is 3 '", other});
  const size_t n = ops.size();
  ExpectRefused(
      check({{fmt::format("{}/ops/{}", unit_path, n - 1), {}}}),
      {fmt::format("{} operators in the plan, {} in the profile", n - 1, n),
       other});
  // Without operators, the unit would be a mixture of policies.
  for (const std::optional<std::string>& none :
       {std::optional<std::string>(), std::optional<std::string>("[]")}) {
    const Outcome outcome = check({{unit_path + "/ops", none}});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.out,
              "broken: GPT2LMHeadModel.transformer.h.0.mlp has no operator "
              "decisions, in a plan at operator granularity\n");
  }
}

TEST_F(CommandsTest, CheckKeepsPlansToPatterns) {
  const auto check = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"check", profile_, "plan.json",
                                       "--budget", "10GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Acplan(arguments);
  };
  PlanTo("plan.json", "10GiB", {"--save", "addmm", "--recompute", "tanh|pow"});
  EXPECT_EQ(check({"--save", "addmm", "--recompute", "tanh|pow"}).exit_code, 0);
  EXPECT_EQ(check({"--recompute", "tanh", "--recompute", "pow"}).exit_code, 0);
  const Outcome saved = check({"--save", "tanh"});
  EXPECT_EQ(saved.exit_code, 1);
  EXPECT_THAT(saved.out, ContainsRegex("^broken: GPT2LMHeadModel.*: operator "
                                       "[0-9]+ 'tanh' must be saved "
                                       "\\(--save\\)\n$"));
  EXPECT_THAT(check({"--recompute", "add*"}).out,
              HasSubstr("'addmm' must be recomputed (--recompute)"));
}

TEST_F(CommandsTest, CheckTakesTheBudgetsThatPlanTakes) {
  const std::vector<std::vector<std::string>> questions{
      {},
      {"--world-size", "4"},
      {"--reserve", "100MiB"},
      {"--granularity", "module"},
      {"--tradeoff", "fit", "--memory-model", "torch"},
      {"--tradeoff", "profile"}};
  for (const std::vector<std::string>& question : questions) {
    SCOPED_TRACE(testing::PrintToString(question));
    for (const std::string budget : {"min", "75%"}) {
      PlanTo("plan.json", budget, question);
      const json plan = json::parse(Read("plan.json"));
      const json check =
          AcplanJson({"check", profile_, "plan.json", "--budget", budget});
      EXPECT_EQ(check["holds"], true);
      EXPECT_EQ(check["budget_bytes"], plan["budget_bytes"]);
    }
  }
  // The budget follows from the options in force, not from those of the plan.
  PlanTo("plan.json", "min");
  const auto budget_bytes = [&](const std::string& budget,
                                const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"check",    profile_, "plan.json",
                                       "--budget", budget,   "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(Acplan(arguments).out)["budget_bytes"].get<int64_t>();
  };
  const std::vector<std::string> only{"--max-units", "2"};
  EXPECT_GT(budget_bytes("min", only), budget_bytes("min", {}));
  EXPECT_EQ(budget_bytes("min", {"--reserve", "1MiB"}),
            budget_bytes("min", {}) + (1 << 20));
  EXPECT_GT(budget_bytes("min", {"--save", "addmm"}), budget_bytes("min", {}));
  EXPECT_LT(budget_bytes("75%", {"--world-size", "8"}),
            budget_bytes("75%", {}));
}

TEST_F(CommandsTest, CompareTakesOperatorAndModulePlans) {
  PlanTo("operators.json", "10GiB");
  PlanTo("hulls.json", "10GiB", {"--granularity", "module"});
  PlanTo("fits.json", "10GiB", {"--tradeoff", "fit"});
  const std::vector<std::string> files{"operators.json", "hulls.json",
                                       "fits.json"};
  const json plans =
      AcplanJson({"show", profile_, files[0], files[1], files[2]})["plans"];
  for (size_t k = 0; k < files.size(); ++k) {
    const json plan = json::parse(Read(files[k]));
    EXPECT_EQ(plans[k + 1]["recompute_ms"], plan["recompute_ms"]) << files[k];
    EXPECT_EQ(plans[k + 1]["peak_bytes"], plan["peak_bytes"]);
    EXPECT_EQ(plans[k + 1]["holds"], "yes");
  }
  // A plan that may mix policies recomputes no more.
  EXPECT_LE(plans[2]["recompute_ms"].get<double>(),
            plans[1]["recompute_ms"].get<double>() * (1 + 1e-9));
}

TEST_F(CommandsTest, CheckUsesThePlansOptionsUnlessGiven) {
  PlanTo(
      "plan.json", "10GiB",
      {"--memory-model", "torch", "--world-size", "4", "--reserve", "100MiB"});
  const json own =
      AcplanJson({"check", profile_, "plan.json", "--budget", "10GiB"});
  EXPECT_EQ(own["memory_model"], "torch");
  EXPECT_EQ(own["world_size"], 4);
  EXPECT_EQ(own["reserve_bytes"], 100 * (int64_t{1} << 20));
  const json outcome = AcplanJson({"check", profile_, "plan.json", "--budget",
                                   "20GiB", "--memory-model", "snapshot",
                                   "--world-size", "1", "--reserve", "1GiB"});
  EXPECT_EQ(outcome["memory_model"], "snapshot");
  EXPECT_EQ(outcome["world_size"], 1);
  EXPECT_EQ(outcome["reserve_bytes"], kReserveBytes);
}

TEST_F(CommandsTest, CompareSetsPlansSideBySide) {
  PlanTo("12GiB.json", "12GiB");
  PlanTo("10GiB.json", "10GiB");
  const std::string out =
      AcplanOut({"show", profile_, "12GiB.json", "10GiB.json"});
  EXPECT_THAT(out, HasSubstr("gpt2_small, memory model snapshot"));
  EXPECT_THAT(out, ContainsRegex(" baseline +12GiB\\.json +10GiB\\.json\n"));
  EXPECT_THAT(out, ContainsRegex("peak memory +14\\.44 GiB +12\\.00 GiB +10"));
  EXPECT_THAT(out, ContainsRegex("AC units +0 +[0-9]+ +[0-9]+\n"));
  EXPECT_THAT(out, ContainsRegex("holds +- +yes +yes\n"));
  EXPECT_THAT(out, HasSubstr("10GiB.json: peak at GPT2LMHeadModel\n"));

  const json comparison =
      AcplanJson({"show", profile_, "12GiB.json", "10GiB.json"});
  const json& columns = comparison["plans"];
  ASSERT_EQ(columns.size(), 3);
  EXPECT_EQ(columns[0]["name"], "baseline");
  EXPECT_EQ(columns[0]["status"], "baseline");
  EXPECT_EQ(columns[0]["recompute_ms"], 0);
  for (int i : {1, 2}) {
    const json plan = json::parse(Read(i == 1 ? "12GiB.json" : "10GiB.json"));
    EXPECT_EQ(columns[i]["status"], "optimal");
    EXPECT_EQ(columns[i]["units"], plan["modules"].size());
    for (const char* key :
         {"peak_bytes", "peak_module", "budget_bytes", "overhead"}) {
      EXPECT_EQ(columns[i][key], plan[key]) << key;
    }
  }
}

TEST_F(CommandsTest, CompareTellsFilesOfOneNameApart) {
  std::filesystem::create_directory(folder() / "a");
  std::filesystem::create_directory(folder() / "b");
  PlanTo("a/plan.json", "12GiB");
  PlanTo("b/plan.json", "10GiB");
  const json comparison =
      AcplanJson({"show", profile_, "a/plan.json", "b/plan.json"});
  EXPECT_EQ(comparison["plans"][1]["name"], "a/plan.json");
  EXPECT_EQ(comparison["plans"][2]["name"], "b/plan.json");
  std::filesystem::rename(folder() / "a/plan.json", folder() / "baseline");
  EXPECT_EQ(AcplanJson({"show", profile_, "baseline"})["plans"][1]["status"],
            "optimal");
}

TEST_F(CommandsTest, CompareWarnsOfAnotherMemoryModel) {
  PlanTo("torch.json", "10GiB", {"--memory-model", "torch"});
  PlanTo("snapshot.json", "10GiB");
  const Outcome outcome =
      Acplan({"show", profile_, "snapshot.json", "torch.json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(
      outcome.err,
      "acplan: warning: torch.json was planned for memory model torch, and "
      "is compared under memory model snapshot\n");
}

TEST_F(CommandsTest, Baseline) {
  const json baseline = AcplanJson({"show", profile_});
  EXPECT_EQ(baseline["model"], "gpt2_small");
  EXPECT_EQ(baseline["peak_module"], "GPT2LMHeadModel");
  EXPECT_EQ(baseline["peak_phase"], "backward");
  EXPECT_NEAR(baseline["persistent_bytes"].get<double>() +
                  baseline["activation_bytes"].get<double>(),
              baseline["peak_bytes"].get<double>(), 1);
  EXPECT_NEAR(baseline["forward_ms"].get<double>() +
                  baseline["backward_ms"].get<double>(),
              baseline["runtime_ms"].get<double>(), 1e-9);
  const std::string out = AcplanOut({"show", profile_});
  EXPECT_THAT(out, HasSubstr("baseline of gpt2_small"));
  EXPECT_THAT(out, ContainsRegex("peak memory +14\\.44 GiB +15,"));
  EXPECT_THAT(out, Not(HasSubstr("rank")));
  EXPECT_THAT(AcplanOut({"show", profile_, "--world-size", "8"}),
              HasSubstr("sharded over 8 ranks"));
  const json torch = AcplanJson({"show", profile_, "--memory-model", "torch"});
  EXPECT_LT(torch["persistent_bytes"], baseline["persistent_bytes"]);
  EXPECT_LT(AcplanJson({"show", profile_, "--without-states"})["peak_bytes"],
            baseline["peak_bytes"]);
}

TEST_F(CommandsTest, TreeFoldsIdenticalBlocks) {
  const std::string out =
      AcplanOut({"show", "--modules", ProfilePath("transformer4")});
  EXPECT_THAT(out, StartsWith("module "));
  EXPECT_THAT(out, ContainsRegex("\n  layers\\.0 × 4 +14 "));
  EXPECT_THAT(out, Not(HasSubstr("layers.1")));
  EXPECT_EQ(Lines(out).size(), 1 + 62 - 3 * 14 + 1);
  const std::string all =
      AcplanOut({"show", "--modules", ProfilePath("transformer4"), "--all"});
  EXPECT_THAT(all, ContainsRegex("\n  layers\\.3 +14 "));
  EXPECT_THAT(all, Not(HasSubstr("× 4")));
  EXPECT_EQ(Lines(all).size(), 1 + 62 + 1);
}

TEST_F(CommandsTest, TreeDepth) {
  const auto modules = [&](const std::string& depth) {
    return Lines(AcplanOut({"show", "--modules", ProfilePath("transformer4"),
                            "--depth", depth}))
               .size() -
           2;
  };
  EXPECT_EQ(modules("0"), 1);
  EXPECT_EQ(modules("1"), 7);
  EXPECT_EQ(modules("2"), 11);
  EXPECT_EQ(modules("9"), 20);
}

TEST_F(CommandsTest, TreeJsonHasEveryModule) {
  const json tree =
      AcplanJson({"show", "--modules", ProfilePath("transformer4")});
  ASSERT_EQ(tree.size(), 62);
  EXPECT_EQ(tree[0]["fqn"], "Transformer");
  EXPECT_TRUE(tree[0]["parent"].is_null());
  EXPECT_EQ(tree[0]["modules"], 62);
  for (const json& module : tree) {
    EXPECT_TRUE(module["record_bytes"].is_number()) << module["fqn"];
    if (module["depth"] == 0) continue;
    EXPECT_THAT(module["fqn"].get<std::string>(),
                StartsWith(module["parent"].get<std::string>() + "."));
  }
  EXPECT_EQ(AcplanJson({"show", "--modules", ProfilePath("transformer4"),
                        "--depth", "1"})
                .size(),
            1 + 4 + 5);
}

TEST_F(CommandsTest, Version) {
  const std::string out = AcplanOut({"version"});
  EXPECT_THAT(out, testing::MatchesRegex("acplan [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(AcplanOut({"--version"}), out);
  EXPECT_THAT(AcplanOut({"version", "--verbose"}),
              testing::AllOf(testing::StartsWith(out),
                             testing::HasSubstr(" build\nCBC "),
                             testing::HasSubstr("CLI11 ")));
}

}  // namespace

}  // namespace acplan::cli
