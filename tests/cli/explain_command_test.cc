#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Le;

constexpr char kTinyGpt2[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

int64_t SumOf(const json& rows) {
  int64_t sum = 0;
  for (const json& row : rows) {
    sum += row.is_object() ? row["bytes"].get<int64_t>() : row.get<int64_t>();
  }
  return sum;
}

class ExplainCommandTest : public CliTest {};

// For every trace that comes with acplan, the account adds up to the peak.
TEST_F(ExplainCommandTest, EveryAccountAddsUpToItsPeak) {
  for (const char* name : {"gpt2_tiny", "bert_base", "resnet50_autocast"}) {
    const std::string trace =
        std::string(ACPLAN_DATA_DIR "/traces/") + name + ".json.gz";
    AcplanJson({"plan", trace, "--budget", "min", "--decisions",
                "save,recompute", "--time-limit", "0.5", "-q", "-o",
                "plan.json"});
    const json answer = AcplanJson(
        {"explain", trace, "--plan", "plan.json", "--time-limit", "0.2"});
    for (const char* key : {"baseline", "least", "planned"}) {
      const json& account = answer[key];
      const int64_t peak = account["peak_bytes"];
      EXPECT_EQ(SumOf(account["by_kind"]), peak) << name << " " << key;
      EXPECT_EQ(SumOf(account["modules"]), peak) << name << " " << key;
      EXPECT_EQ(SumOf(account["operators"]), peak) << name << " " << key;
      EXPECT_LE(account["fixed_bytes"], peak) << name << " " << key;
    }
    const json simulated = AcplanJson({"simulate", trace, "plan.json"});
    EXPECT_EQ(answer["baseline"]["peak_bytes"],
              simulated["baseline"]["peak_bytes"]);
    EXPECT_EQ(answer["planned"]["peak_bytes"],
              simulated["planned"]["peak_bytes"]);
    EXPECT_EQ(answer["baseline"]["by_kind"]["parameters"],
              simulated["baseline"]["by_category"]["parameter"]);
    EXPECT_LE(answer["floor_bytes"], answer["least"]["bound_bytes"]);
  }
}

TEST_F(ExplainCommandTest, TheLeastBudgetIsThatOfPlan) {
  const json answer = AcplanJson({"explain", kTinyGpt2});
  const json plan = AcplanJson({"plan", kTinyGpt2, "--budget", "min"});
  EXPECT_EQ(answer["least"]["peak_bytes"], plan["peak_bytes"]);
  const json of_least = AcplanJson({"explain", kTinyGpt2, "--budget", "min"});
  EXPECT_EQ(of_least["budget_bytes"], plan["peak_bytes"]);
  EXPECT_EQ(of_least["fits"], true);
}

TEST_F(ExplainCommandTest, TablesKeepWithinAHundredColumns) {
  const std::string text =
      AcplanOut({"explain", ACPLAN_DATA_DIR "/traces/swin_tiny.json.gz",
                 "--top", "40", "--time-limit", "0.2"});
  std::vector<size_t> widths;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    widths.push_back(TextWidth(line));
  }
  EXPECT_THAT(widths, Each(Le(100u)));
  EXPECT_THAT(text, AllOf(HasSubstr("saved for backward"),
                          HasSubstr("by module"), HasSubstr("no plan needs")));
}

TEST_F(ExplainCommandTest, SaysWhatLacksToABudget) {
  const json answer = AcplanJson({"explain", kTinyGpt2});
  const int64_t least = answer["least"]["peak_bytes"];
  const auto with = [&](int64_t budget) {
    return AcplanOut(
        {"explain", kTinyGpt2, "--budget", std::to_string(budget)});
  };
  EXPECT_THAT(with(least - 512), HasSubstr("512 B less than the least"));
  EXPECT_THAT(with(least), HasSubstr("enough with a plan"));
  EXPECT_THAT(with(answer["baseline"]["peak_bytes"].get<int64_t>()),
              HasSubstr("enough without a plan"));
}

TEST_F(ExplainCommandTest, APlanThatThereIsNoneOfEndsWithTwoLines) {
  const json answer = AcplanJson({"explain", kTinyGpt2});
  const int64_t least = answer["least"]["peak_bytes"];
  const Outcome outcome =
      Acplan({"plan", kTinyGpt2, "--budget", std::to_string(least - 1)});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\nits peak is at "),
                                 HasSubstr("\nevery plan keeps ")));
  const Outcome sharded =
      Acplan({"plan", kTinyGpt2, "--budget", "1MiB", "--world-size", "8"});
  EXPECT_EQ(sharded.exit_code, 3);
  EXPECT_THAT(sharded.out, HasSubstr("every plan keeps"));
}

TEST_F(ExplainCommandTest, APlanThatThereIsNoneOfHasTheLineAndTheWayOut) {
  json trace = json::parse(graph::ReadFile(kTinyGpt2));
  trace["sources"] = {
      {{"file", "model.py"}, {"line", 7}, {"function", "forward"}}};
  for (json& op : trace["operators"]) op["source"] = 0;
  PutFile("lines.json", trace.dump());
  const Outcome outcome = Acplan({"plan", "lines.json", "--budget", "1MiB"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("\nat model.py:7"),
                    HasSubstr("acplan explain shows what takes the memory")));
  EXPECT_THAT(AcplanOut({"explain", "lines.json", "--budget", "1MiB"}),
              HasSubstr("less than the least that any plan needs"));
}

// Such as blocks in which a transform differentiates.
TEST_F(ExplainCommandTest, ModulesThatAreNoUnitsAreListed) {
  json trace = json::parse(graph::ReadFile(kTinyGpt2));
  for (json& call : trace["calls"]) {
    const json& module = trace["modules"][call["module"].get<size_t>()];
    if (module["class"] == "GPT2Block") call["no_grad"] = true;
  }
  PutFile("barred.json", trace.dump());
  EXPECT_EQ(AcplanJson({"explain", kTinyGpt2})["no_units"].size(), 0u);
  const json listed = AcplanJson({"explain", "barred.json"})["no_units"];
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["modules"],
            "GPT2LMHeadModel.transformer.h.* (4 modules)");
  EXPECT_EQ(listed[0]["count"], 4);
  EXPECT_GT(listed[0]["bytes"], 0);
  EXPECT_THAT(AcplanOut({"explain", "barred.json"}),
              AllOf(HasSubstr("\nmodules that could not be units"),
                    HasSubstr("\nGPT2LMHeadModel.transformer.h.* (4 "),
                    HasSubstr(listed[0]["why"].get<std::string>())));
}

// A rank of eight, whose layers are whole while they run.
TEST_F(ExplainCommandTest, ARankHasItsShards) {
  const std::vector<std::string> rank = {
      "--world-size", "8", "--fsdp-units",
      "GPT2LMHeadModel.transformer.h.0,GPT2LMHeadModel.transformer.h.1"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), rank.begin(), rank.end());
    return arguments;
  };
  AcplanJson(with({"plan", kTinyGpt2, "--budget", "99%", "-o", "plan.json"}));
  const json answer =
      AcplanJson(with({"explain", kTinyGpt2, "--plan", "plan.json"}));
  const json whole = AcplanJson({"explain", kTinyGpt2});
  EXPECT_EQ(answer["world_size"], 8);
  for (const char* key : {"baseline", "least", "planned"}) {
    const json& account = answer[key];
    for (const char* grouping : {"by_kind", "modules", "operators"}) {
      EXPECT_EQ(SumOf(account[grouping]), account["peak_bytes"])
          << key << " " << grouping;
    }
    EXPECT_GT(account["by_kind"]["gathered parameters"], 0);
    EXPECT_LT(account["by_kind"]["parameters"].get<int64_t>() * 7,
              whole["baseline"]["by_kind"]["parameters"].get<int64_t>());
  }
  EXPECT_EQ(answer["planned"]["peak_bytes"],
            json::parse(Read("plan.json"))["peak_bytes"]);
  EXPECT_EQ(
      answer["baseline"]["peak_bytes"],
      AcplanJson(with({"plan", kTinyGpt2, "--budget", "1TiB"}))["peak_bytes"]);
  EXPECT_EQ(
      answer["least"]["peak_bytes"],
      AcplanJson(with({"plan", kTinyGpt2, "--budget", "min"}))["peak_bytes"]);
  EXPECT_LE(answer["floor_bytes"], answer["least"]["bound_bytes"]);
  EXPECT_EQ(whole["baseline"]["by_kind"]["gathered parameters"], 0);
  EXPECT_THAT(AcplanOut(with({"explain", kTinyGpt2})),
              AllOf(HasSubstr(", a rank of 8\n"),
                    HasSubstr("\n  gathered parameters")));
  EXPECT_THAT(AcplanOut({"explain", kTinyGpt2}),
              testing::Not(HasSubstr("gathered")));
}

TEST_F(ExplainCommandTest, APlanOfAnotherQuestionIsToldOf) {
  AcplanJson({"plan", kTinyGpt2, "--budget", "99%", "-o", "plan.json"});
  const Outcome outcome = Acplan(
      {"explain", kTinyGpt2, "--plan", "plan.json", "--world-size", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("plan.json was planned for memory model trace, and is "
                        "shown under memory model trace, world size 2"));
}

// The seed of the fuzzers, whose lines are known.
TEST_F(ExplainCommandTest, LinesOfPythonAreShownWhereTheTraceHasThem) {
  const char* seed = ACPLAN_SEED_TRACE;
  const json answer = AcplanJson({"explain", seed});
  const json& account = answer["baseline"];
  EXPECT_EQ(SumOf(account["lines"]), account["peak_bytes"]);
  bool is_named = false;
  for (const json& row : account["lines"]) {
    is_named |= row["source"] == "nets/small.py:12";
  }
  EXPECT_TRUE(is_named);
  EXPECT_EQ(account["peak"]["source"].get<std::string>(),
            AcplanJson({"simulate", seed})["baseline"]["peak"]["source"]);
  EXPECT_THAT(AcplanOut({"explain", seed}),
              AllOf(HasSubstr("by line that made it"),
                    HasSubstr("nets/small.py:12"), HasSubstr("(of no line)")));
  // Older traces have none.
  EXPECT_TRUE(AcplanJson({"explain", kTinyGpt2})["baseline"]["lines"].empty());
  EXPECT_THAT(AcplanOut({"explain", kTinyGpt2}),
              testing::Not(HasSubstr("by line")));
}

TEST_F(ExplainCommandTest, WrongInputIsOneLine) {
  const auto refused = [&](std::vector<std::string> arguments,
                           const std::string& why) {
    arguments.insert(arguments.begin(), "explain");
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  };
  refused({ProfilePath("gpt2_small")}, "expected a trace, found a profile");
  refused({kTinyGpt2, "--top", "0"}, "--top");
  refused({kTinyGpt2, "--world-size", "0"}, "--world-size");
  refused({kTinyGpt2, "--world-size", "2", "--fsdp-units", "none"},
          "--fsdp-units");
  refused({kTinyGpt2, "--memory-model", "snapshot"}, "expected trace");
  refused({kTinyGpt2, "--budget", "1.5"}, "--budget");
  refused({kTinyGpt2, "--plan", "none.json"}, "none.json");
  PutFile("plan.json",
          R"({"format": "acplan.plan", "version": 1, "model": "Other",
      "budget_bytes": 1, "memory_model": "trace", "world_size": 1,
      "status": "feasible", "modules": []})");
  refused({kTinyGpt2, "--plan", "plan.json"}, "model");
  refused({kTinyGpt2, "-o", "no/such/folder.json"}, "no/such");
}

// Returns the flags of `acplan simulate` that are a lever's program.
std::vector<std::string> FlagsOf(const json& program) {
  std::vector<std::string> flags = {
      "--allocator",       program["allocator"],
      "--optimizer-state", program["optimizer_state"],
      "--model-order",     program["model_order"]};
  for (const json& when : program["empty_cache"]) {
    flags.insert(flags.end(), {"--empty-cache", when});
  }
  return flags;
}

// Every lever's figures are those of a run that is simulated with it, and the bytes
// of the peak add up.
TEST_F(ExplainCommandTest, LeversOnADeviceAreSimulated) {
  constexpr char kTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";
  AcplanJson({"plan", kTrace, "--budget", "60%", "--time-limit", "0.5", "-q",
              "-o", "plan.json"});
  // The search for a plan ends by the clock, so the device follows from the plan.
  const int64_t too_small =
      AcplanJson({"simulate", kTrace, "plan.json", "--allocator",
                  "native"})["run"]["least_device_bytes"]
          .get<int64_t>() -
      (int64_t{2} << 20);
  const json device =
      AcplanJson({"explain", kTrace, "--plan", "plan.json", "--device-memory",
                  std::to_string(too_small), "--time-limit", "0.2"})["device"];
  const json& peak = device["peak"];
  EXPECT_FALSE(device["fits"].get<bool>());
  EXPECT_EQ(peak["reserved_bytes"].get<int64_t>(),
            peak["allocated_bytes"].get<int64_t>() +
                peak["hole_bytes"].get<int64_t>() +
                peak["releasable_bytes"].get<int64_t>());
  int64_t hole_bytes = 0;
  for (const json& holes : peak["beside_holes"]) {
    hole_bytes += holes["hole_bytes"].get<int64_t>();
  }
  EXPECT_EQ(hole_bytes, peak["hole_bytes"]);
  EXPECT_GT(hole_bytes, 0);

  const auto expect_simulated = [&](const json& program) {
    if (program["plan"] == "least") return;
    std::vector<std::string> command = {"simulate", kTrace};
    if (program["plan"] == "given") command.push_back("plan.json");
    const std::vector<std::string> flags = FlagsOf(program);
    command.insert(command.end(), flags.begin(), flags.end());
    const json run = AcplanJson(command)["run"];
    for (const char* key :
         {"allocated_bytes", "reserved_bytes", "least_device_bytes"}) {
      EXPECT_EQ(program[key], run[key]) << program.dump();
    }
  };
  expect_simulated(device);
  int64_t gained = std::numeric_limits<int64_t>::max();
  size_t changed = 0;
  for (const json& lever : device["levers"]) {
    expect_simulated(lever);
    const int64_t least = lever["least_device_bytes"];
    EXPECT_EQ(lever["gained_bytes"].get<int64_t>(),
              device["least_device_bytes"].get<int64_t>() - least);
    if (least <= too_small) {
      EXPECT_TRUE(lever["fits"].get<bool>()) << lever.dump();
      ++changed;
    }
    if (lever["levers"].size() > 1) continue;  // together, the last
    EXPECT_LE(lever["gained_bytes"], gained);
    gained = lever["gained_bytes"];
  }
  EXPECT_GE(device["levers"].size(), size_t{9});
  EXPECT_GT(changed, size_t{0});
}

// A budget of live bytes that a run exceeds is explained as a device.
TEST_F(ExplainCommandTest, ABudgetThatADeviceExceeds) {
  const json baseline = AcplanJson({"explain", kTinyGpt2});
  EXPECT_FALSE(baseline.contains("device"));
  const std::string peak =
      std::to_string(baseline["baseline"]["peak_bytes"].get<int64_t>());
  const json tight = AcplanJson({"explain", kTinyGpt2, "--budget", peak});
  EXPECT_EQ(tight["device"]["plan"], "none");
  EXPECT_FALSE(tight["device"]["fits"].get<bool>());
  EXPECT_FALSE(AcplanJson({"explain", kTinyGpt2, "--budget", "10GiB"})
                   .contains("device"));
  EXPECT_THAT(Acplan({"explain", kTinyGpt2, "--budget", peak}).out,
              AllOf(HasSubstr("a run without a plan runs out of memory"),
                    HasSubstr("lever, simulated")));
  for (const auto& [flags, said] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--allocator", "native"}, "--allocator: needs --device-memory"},
           {{"--device-memory", "1GiB", "--world-size", "2"}, "--world-size"},
           {{"--device-memory", "1GiB", "--allocator", "none"}, "none"}}) {
    std::vector<std::string> command = {"explain", kTinyGpt2};
    command.insert(command.end(), flags.begin(), flags.end());
    const Outcome outcome = Acplan(command);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(said));
  }
}

}  // namespace

}  // namespace acplan::cli
