#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
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

class PlanCommandTest : public CliTest {
 protected:
  std::vector<std::string> PlanGpt2(
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"plan", ProfilePath("gpt2_small"),
                                       "--budget", "10GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(PlanCommandTest, TheTableHasWhatAPersonNeeds) {
  const std::string out = AcplanOut(PlanGpt2());
  EXPECT_THAT(out, AllOf(HasSubstr("gpt2_small"), HasSubstr("151 modules"),
                         HasSubstr("batch 8"), HasSubstr("sequence 1024"),
                         HasSubstr("fp32"), HasSubstr("AdamW")));
  EXPECT_THAT(out, HasSubstr("budget 10.00 GiB (10,737,418,240 bytes)"));
  EXPECT_THAT(out, HasSubstr("memory model snapshot"));
  EXPECT_THAT(out, ContainsRegex("peak memory +14\\.44 GiB +10\\.00 GiB +-"));
  EXPECT_THAT(out, ContainsRegex("step time +[0-9.]+ ms +[0-9.]+ ms +\\+"));
  EXPECT_THAT(out, ContainsRegex("recomputed +0\\.00 ms +[0-9.]+ ms"));
  EXPECT_THAT(out, ContainsRegex("peak at +GPT2LMHeadModel"));
  EXPECT_THAT(out, AllOf(HasSubstr("AC unit"), HasSubstr("discard ratio"),
                         HasSubstr("memory budget")));
  EXPECT_THAT(out, HasSubstr("\noperator granularity\n"));
  EXPECT_THAT(
      out, ContainsRegex("GPT2LMHeadModel.transformer.h.0-11.mlp +12 +0\\."));
  EXPECT_THAT(out, ContainsRegex("in all +24 +[0-9.]+ GiB +[0-9.]+ ms\n"));
  EXPECT_THAT(out, HasSubstr("\nGPT2LMHeadModel.transformer.h.0-11.mlp: save "
                             "addmm, addmm, native_dropout; recompute 8 "
                             "others\n"));
  EXPECT_THAT(out, HasSubstr("optimal: no plan within the budget recomputes "
                             "less (gap 0, "));
  EXPECT_THAT(out, HasSubstr("note: the snapshot memory model"));
  EXPECT_THAT(out, Not(HasSubstr("\033")));
}

TEST_F(PlanCommandTest, SaysHowFarPredictedTimesAreOff) {
  json trace =
      json::parse(graph::ReadFile(ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz"));
  const auto plan = [&] {
    PutFile("trace.json", trace.dump());
    return AcplanOut({"plan", "trace.json", "--budget", "99%"});
  };
  const json errors = trace["device"]["time_errors"];
  ASSERT_EQ(errors["ninety"], 0.3);
  ASSERT_EQ(errors["ninety_of_kinds"]["convolutions"], 0.3);
  PutFile("trace.json", trace.dump());
  EXPECT_EQ(
      AcplanJson({"plan", "trace.json", "--budget", "99%"})["time_errors"],
      errors);
  EXPECT_THAT(AcplanOut({"frontier", "trace.json", "--points", "2"}),
              HasSubstr("\ntimes           predicted for a100: half of "));
  EXPECT_THAT(plan(), HasSubstr("\ntimes           predicted for a100: half of "
                                "the steps that were measured are within 7%, "
                                "nine in ten within 30%\n"));
  trace["device"]["time_errors"] = {{"median", 0}, {"ninety", 0}};
  EXPECT_THAT(plan(), HasSubstr("\ntimes           predicted for a100, on "
                                "which no step was measured\n"));
  trace["device"].erase("time_errors");
  EXPECT_THAT(plan(), Not(HasSubstr("\ntimes ")));
}

TEST_F(PlanCommandTest, TheTableAgreesWithTheJson) {
  const std::string out = AcplanOut(PlanGpt2({"--all"}));
  const json plan = AcplanJson(PlanGpt2());
  double sum = 0;
  for (const json& unit : plan["modules"]) {
    EXPECT_THAT(out, ContainsRegex(fmt::format(
                         "{} +{} ", unit["fqn"].get<std::string>(),
                         FormatRatioUp(unit["discard_ratio"].get<double>()))));
    sum += unit["recompute_ms"].get<double>();
  }
  EXPECT_THAT(out, HasSubstr(fmt::format("{} units", plan["modules"].size())));
  EXPECT_NEAR(sum, plan["recompute_ms"].get<double>(), 1e-9);
}

TEST_F(PlanCommandTest, JsonIsThePlanFile) {
  const std::string out = AcplanOut(PlanGpt2({"--json"}));
  const json plan = json::parse(out);
  EXPECT_EQ(plan["format"], "acplan.plan");
  EXPECT_EQ(plan["version"], 1);
  EXPECT_EQ(plan["model"], "gpt2_small");
  EXPECT_EQ(plan["budget_bytes"], 10'737'418'240);
  EXPECT_EQ(plan["world_size"], 1);
  EXPECT_EQ(plan["memory_model"], "snapshot");
  EXPECT_EQ(plan["granularity"], "operator");
  EXPECT_EQ(plan["tradeoff"], "pareto");
  EXPECT_EQ(plan["status"], "optimal");
  EXPECT_FALSE(plan.contains("limit"));
  EXPECT_FALSE(plan.contains("minimum_budget_bytes"));
  EXPECT_EQ(plan["gap"], 0);
  EXPECT_EQ(plan["bound_ms"], plan["recompute_ms"]);
  EXPECT_LE(plan["peak_bytes"], plan["budget_bytes"]);
  EXPECT_EQ(plan["peak_module"], "GPT2LMHeadModel");
  const json& baseline = plan["baseline"];
  EXPECT_GT(baseline["peak_bytes"], plan["budget_bytes"]);
  EXPECT_EQ(baseline["peak_module"], "GPT2LMHeadModel");
  EXPECT_DOUBLE_EQ(plan["overhead"].get<double>(),
                   plan["recompute_ms"].get<double>() /
                       baseline["runtime_ms"].get<double>());
  ASSERT_FALSE(plan["modules"].empty());
  for (const json& unit : plan["modules"]) {
    EXPECT_NEAR(unit["memory_budget"].get<double>(),
                1 - unit["discard_ratio"].get<double>(), 1e-12);
    EXPECT_GT(unit["discarded_bytes"], 0);
    EXPECT_GT(unit["recompute_ms"], 0);
    ASSERT_FALSE(unit["ops"].empty());
    for (size_t k = 0; k < unit["ops"].size(); ++k) {
      EXPECT_EQ(unit["ops"][k]["index"], k);
    }
  }
  for (const char* key : {"name", "seconds", "nodes", "rows", "columns"}) {
    EXPECT_TRUE(plan["solver"].contains(key)) << key;
  }
}

TEST_F(PlanCommandTest, OnATraceSaysHowNearItIsToAnySchedule) {
  const std::vector<std::string> question = {
      "plan",        ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz",
      "--budget",    "80%",
      "--gap",       "0.1",
      "--decisions", "save,recompute,skip"};
  const json plan = AcplanJson(question);
  const double ms = plan["recompute_ms"].get<double>();
  const double bound = plan["any_schedule"]["bound_ms"].get<double>();
  EXPECT_GT(bound, ms / 2);
  EXPECT_LE(bound, ms);
  EXPECT_LE(bound, plan["bound_ms"]);
  EXPECT_DOUBLE_EQ(plan["any_schedule"]["distance"].get<double>(),
                   (ms - bound) / ms);
  EXPECT_FALSE(plan["any_schedule"].contains("loose"));
  EXPECT_THAT(AcplanOut(question),
              HasSubstr(fmt::format(
                  "\nlower bound for any schedule: {:.2f} ms (", bound)));
  EXPECT_FALSE(AcplanJson(PlanGpt2()).contains("any_schedule"));
  EXPECT_THAT(AcplanOut(PlanGpt2()), Not(HasSubstr("any schedule")));
}

TEST_F(PlanCommandTest, PlansForADevice) {
  const std::string trace = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";
  const std::vector<std::string> question = {"plan", trace, "--device-memory",
                                             "8GiB"};
  const json plan = AcplanJson(question);
  EXPECT_EQ(plan["budget_bytes"], int64_t{8} << 30);
  const json& device = plan["device"];
  EXPECT_EQ(device["allocator"],
            "expandable_segments:True,large_segment_size_mb:12");
  EXPECT_EQ(device["optimizer_state_first"], true);
  EXPECT_LE(device["reserved_bytes"], int64_t{8} << 30);
  EXPECT_GT(device["default_least_device_bytes"], int64_t{8} << 30);
  EXPECT_THAT(
      AcplanOut(question),
      AllOf(HasSubstr("\non the device   "),
            HasSubstr("set PYTORCH_ALLOC_CONF=expandable_segments:True,"
                      "large_segment_size_mb:12\n"),
            HasSubstr("acplan.make_optimizer_state(optimizer)"),
            HasSubstr("feasible: no plan whose live bytes fit the device")));

  // Versions without that option do not get it.
  std::vector<std::string> older = question;
  older.insert(older.end(), {"--torch-version", "2.10"});
  EXPECT_EQ(AcplanJson(older)["device"]["allocator"],
            "expandable_segments:True");

  // Without those settings more is recomputed, or no plan is found.
  std::vector<std::string> with_defaults = question;
  with_defaults.insert(with_defaults.end(), {"--allocator", "native",
                                             "--optimizer-state", "update"});
  with_defaults[3] = "7GiB";
  EXPECT_EQ(Acplan(with_defaults).exit_code, 4);
  with_defaults[3] = "12GiB";
  const json native = AcplanJson(with_defaults);
  EXPECT_EQ(native["device"]["allocator"], "native");
  EXPECT_FALSE(native["device"].contains("default_least_device_bytes"));

  std::vector<std::string> card_question = question;
  card_question[3] = "t4";
  const json on_card = AcplanJson(card_question);
  EXPECT_EQ(on_card["device"]["gpu"]["name"], "t4");
  EXPECT_EQ(on_card["device"]["gpu"]["capacity_bytes"].get<int64_t>() -
                on_card["device"]["gpu"]["context_bytes"].get<int64_t>(),
            on_card["budget_bytes"]);
  PutFile("card.json", on_card.dump());
  EXPECT_THAT(AcplanOut({"check", trace, "card.json", "--device-memory", "T4"}),
              HasSubstr("t4: 14.75 GiB - "));

  PutFile("device.json", plan.dump());
  const std::vector<std::string> check = {"check", trace, "device.json",
                                          "--device-memory", "8GiB"};
  EXPECT_EQ(Acplan(check).exit_code, 0);
  std::vector<std::string> check_native = check;
  check_native.insert(check_native.end(), {"--allocator", "native"});
  const Outcome broken = Acplan(check_native);
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.out,
              HasSubstr("broken: out of memory: the run of the plan "
                        "does not end on a device of 8.00 GiB"));

  // On a larger device the plan states nothing that could be false.
  std::vector<std::string> check_larger = check;
  check_larger[4] = "9GiB";
  const json larger = AcplanJson(check_larger);
  EXPECT_TRUE(larger["holds"]);
  EXPECT_EQ(larger["device"]["memory_bytes"], 9LL << 30);
  EXPECT_LE(larger["device"]["reserved_bytes"], 9LL << 30);

  // A budget leaves the plan's own device to be judged.
  std::vector<std::string> check_budget = {"check", trace, "device.json",
                                           "--budget", "10GiB"};
  EXPECT_THAT(
      AcplanOut(check_budget),
      AllOf(StartsWith("holds: "), HasSubstr("\ndevice          8.00 GiB"),
            HasSubstr("\non the device   ")));
  json on_device = AcplanJson(check_budget)["device"];
  EXPECT_EQ(on_device["memory_bytes"], plan["budget_bytes"]);
  on_device.erase("memory_bytes");
  json stated = plan["device"];
  stated.erase("default_recompute_ms");
  on_device.erase("default_recompute_ms");
  EXPECT_EQ(on_device, stated);
  json false_plan = plan;
  false_plan["device"]["reserved_bytes"] =
      plan["device"]["reserved_bytes"].get<int64_t>() - 512;
  PutFile("device.json", false_plan.dump());
  const Outcome of_false = Acplan(check_budget);
  EXPECT_EQ(of_false.exit_code, 1);
  EXPECT_THAT(of_false.out,
              HasSubstr("broken: on the device of 8.00 GiB that the plan is "
                        "for: the plan says that its run reserves"));
  check_budget.insert(check_budget.end(), {"--world-size", "2"});
  EXPECT_THAT(AcplanOut(check_budget),
              HasSubstr("the device that the plan is for was not judged"));
}

TEST_F(PlanCommandTest, ProfilesHaveNoTimesOfTheHost) {
  const Outcome outcome = Acplan({"plan", ProfilePath("transformer4"),
                                  "--budget", "2GiB", "--without-host"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "acplan: --without-host: needs a trace\n");
}

TEST_F(PlanCommandTest, ModulePlansHaveNoOperators) {
  for (const auto& [tradeoff, more] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"pareto", {"--granularity", "module"}},
           {"fit", {"--tradeoff", "fit"}},
           {"profile", {"--tradeoff", "profile", "--granularity", "module"}}}) {
    const json plan = AcplanJson(PlanGpt2(more));
    EXPECT_EQ(plan["status"], "optimal");
    EXPECT_EQ(plan["granularity"], "module");
    EXPECT_EQ(plan["tradeoff"], tradeoff);
    for (const json& unit : plan["modules"]) {
      EXPECT_FALSE(unit.contains("ops"));
    }
    EXPECT_THAT(
        AcplanOut(PlanGpt2(more)),
        HasSubstr("\nmodule granularity, trade-off " + tradeoff + "\n"));
  }
}

TEST_F(PlanCommandTest, EveryUnitObeysThePatterns) {
  const std::vector<std::string> patterns{"--save",      "addmm|native_drop*",
                                          "--recompute", "gelu",
                                          "--recompute", "native_layer*"};
  for (const std::string engine : {"labels", "cbc"}) {
    std::vector<std::string> arguments{"plan",     ProfilePath("bert_large"),
                                       "--budget", "90%",
                                       "-o",       "plan.json",
                                       "--engine", engine,
                                       "--gap",    "0.01"};
    arguments.insert(arguments.end(), patterns.begin(), patterns.end());
    AcplanOut(arguments);
    const json plan = json::parse(Read("plan.json"));
    ASSERT_FALSE(plan["modules"].empty());
    int saved = 0;
    int recomputed = 0;
    for (const json& unit : plan["modules"]) {
      for (const json& op : unit["ops"]) {
        const std::string name = op["name"];
        if (name == "addmm" || name.starts_with("native_drop")) {
          EXPECT_EQ(op["decision"], "save") << unit["fqn"] << op;
          ++saved;
        } else if (name == "gelu" || name.starts_with("native_layer")) {
          EXPECT_EQ(op["decision"], "recompute") << unit["fqn"] << op;
          ++recomputed;
        }
      }
    }
    EXPECT_GT(saved, 0);
    EXPECT_GT(recomputed, 0);
    EXPECT_THAT(
        AcplanOut({"check", ProfilePath("bert_large"), "plan.json", "--budget",
                   fmt::format("{}", plan["budget_bytes"].get<int64_t>())}),
        StartsWith("holds: "));
    EXPECT_GE(plan["recompute_ms"].get<double>(),
              AcplanJson({"plan", ProfilePath("bert_large"), "--budget",
                          "90%"})["recompute_ms"]
                  .get<double>());
  }
}

TEST_F(PlanCommandTest, PatternsThatContradictLeaveModulesOut) {
  const Outcome outcome =
      Acplan({"plan", ProfilePath("transformer4"), "--budget", "2GiB", "--save",
              "gelu", "--recompute", "gelu", "-o", "plan.json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("acplan: warning: Transformer.layers.*.feed_forward (4 "
                "modules): no policy satisfies all rules, so it cannot be an "
                "AC unit: operator 4 'gelu' must be saved (--save 'gelu') and "
                "must be recomputed (--recompute 'gelu')\n"));
  EXPECT_EQ(Lines(outcome.err).size(), 3);
  const json plan = json::parse(Read("plan.json"));
  EXPECT_EQ(plan["status"], "optimal");
  ASSERT_FALSE(plan["modules"].empty());
  for (const json& unit : plan["modules"]) {
    for (const json& op : unit["ops"]) EXPECT_NE(op["name"], "gelu");
  }
}

TEST_F(PlanCommandTest, ShareOfWhatARankUses) {
  const std::string profile = ProfilePath("gpt2_small");
  for (const std::string ranks : {"1", "4"}) {
    const auto baseline = AcplanJson({"show", profile, "--world-size", ranks});
    const auto peak =
        baseline[ranks == "1" ? "peak_bytes" : "sharded_peak_bytes"]
            .get<int64_t>();
    const auto plan = [&](const std::string& budget) {
      return AcplanJson(
          {"plan", profile, "--budget", budget, "--world-size", ranks});
    };
    EXPECT_EQ(plan("75%")["budget_bytes"], peak * 3 / 4);
    EXPECT_TRUE(plan("100%")["modules"].empty());
    EXPECT_EQ(plan("100%")["budget_bytes"], peak);
    EXPECT_EQ(plan("100%")["recompute_ms"], 0);
    EXPECT_EQ(plan("250%")["budget_bytes"], peak * 5 / 2);
    EXPECT_FALSE(plan("99.9%")["modules"].empty());
  }
}

TEST_F(PlanCommandTest, AllShowsUnitsOneByOne) {
  const std::string folded = AcplanOut(PlanGpt2());
  const std::string all = AcplanOut(PlanGpt2({"--all"}));
  EXPECT_THAT(folded, HasSubstr(".h.0-11.mlp"));
  EXPECT_THAT(all, Not(HasSubstr(".h.0-11.mlp")));
  EXPECT_THAT(all, ContainsRegex("\n24 units +[0-9.]+ GiB +[0-9.]+ ms\n"));
  for (int layer = 0; layer < 12; ++layer) {
    EXPECT_THAT(all, HasSubstr(fmt::format(".h.{}.mlp ", layer)));
  }
  EXPECT_EQ(Lines(all).size(), Lines(folded).size() + 2 * (24 - 3));
}

TEST_F(PlanCommandTest, LinesStayReadable) {
  for (const std::string profile :
       {"bert_large", "llama8b", "resnet50", "unet", "vit_large"}) {
    for (const std::string budget : {"min", "90%"}) {
      for (const std::string& line :
           Lines(AcplanOut({"plan", ProfilePath(profile), "--budget", budget,
                            "--engine", "labels"}))) {
        if (line.starts_with("note: ") || line.starts_with("──")) continue;
        EXPECT_LT(line.size(), 200) << line;
      }
    }
  }
}

TEST_F(PlanCommandTest, NumbersAreInFullPrecision) {
  const std::string out = AcplanOut(PlanGpt2({"--json"}));
  EXPECT_EQ(problems::PlanToJson(problems::ParsePlan(out, "plan.json")), out);
}

TEST_F(PlanCommandTest, TheFileIsWhatJsonPrints) {
  for (const char* name : {"plan.json", "plan.json.gz"}) {
    const std::string out = AcplanOut(PlanGpt2({"--json", "-o", name}));
    EXPECT_EQ(graph::ReadFile(folder() / name), out);
  }
  EXPECT_EQ(Read("plan.json.gz").substr(0, 2), "\x1f\x8b");
}

TEST_F(PlanCommandTest, TheFileReplacesAnOlderOne) {
  PutFile("plan.json", "something that is longer than nothing");
  AcplanOut(PlanGpt2({"--output", "plan.json"}));
  EXPECT_EQ(json::parse(Read("plan.json"))["status"], "optimal");
}

TEST_F(PlanCommandTest, WritesOnlyTheFile) {
  AcplanOut(PlanGpt2({"-o", "plan.json"}));
  int files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(folder())) {
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST_F(PlanCommandTest, AModelThatFitsNeedsNoUnits) {
  const std::string out =
      AcplanOut({"plan", ProfilePath("transformer4"), "--budget", "80 GiB"});
  EXPECT_THAT(out, HasSubstr("No module needs to be checkpointed"));
  EXPECT_THAT(out, HasSubstr("optimal"));
}

TEST_F(PlanCommandTest, EnginesAgree) {
  const std::vector<std::string> arguments{"plan", ProfilePath("transformer4"),
                                           "--budget", "1.3GiB"};
  std::vector<double> ms;
  for (const std::string engine : {"auto", "labels", "cbc"}) {
    std::vector<std::string> with_engine = arguments;
    with_engine.insert(with_engine.end(), {"--engine", engine});
    const json plan = AcplanJson(with_engine);
    EXPECT_EQ(plan["status"], "optimal");
    EXPECT_EQ(plan["solver"]["name"], engine == "auto" ? "labels" : engine);
    ms.push_back(plan["recompute_ms"].get<double>());
  }
  EXPECT_EQ(ms[0], ms[1]);
  EXPECT_NEAR(ms[0], ms[2], 1e-6 * ms[0]);
}

TEST_F(PlanCommandTest, ReserveLowersThePeak) {
  const json plan = AcplanJson(PlanGpt2({"--reserve", "1GiB"}));
  EXPECT_EQ(plan["budget_bytes"], 10'737'418'240);
  EXPECT_EQ(plan["reserve_bytes"], int64_t{1} << 30);
  EXPECT_LE(plan["peak_bytes"], 9 * (int64_t{1} << 30));
}

TEST_F(PlanCommandTest, UnitFlagsRestrictTheUnits) {
  const std::vector<std::string> only{"--ac-units",
                                      "GPT2LMHeadModel.transformer.h.1,"
                                      "GPT2LMHeadModel.transformer.h.2"};
  const json plan = AcplanJson({"plan", ProfilePath("gpt2_small"), "--budget",
                                "13.9GiB", only[0], only[1]});
  ASSERT_FALSE(plan["modules"].empty());
  for (const json& unit : plan["modules"]) {
    EXPECT_THAT(only[1], HasSubstr(unit["fqn"].get<std::string>()));
  }
  EXPECT_LE(AcplanJson({"plan", ProfilePath("gpt2_small"), "--budget", "12GiB",
                        "--max-units", "5"})["modules"]
                .size(),
            5);
}

TEST_F(PlanCommandTest, WorldSizeDividesParametersGradientsAndStates) {
  const auto peak = [&](const std::string& ranks) {
    return AcplanJson({"show", ProfilePath("llama8b"), "--world-size",
                       ranks})["sharded_peak_bytes"]
        .get<int64_t>();
  };
  EXPECT_GT(peak("1"), peak("2"));
  EXPECT_GT(peak("2"), peak("64"));
  EXPECT_EQ(AcplanJson({"plan", ProfilePath("llama8b"), "--budget", "40GiB",
                        "--world-size", "8"})["world_size"],
            8);
}

}  // namespace

}  // namespace acplan::cli
