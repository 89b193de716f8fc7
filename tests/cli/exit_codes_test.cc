#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "tests/cli/cli_test.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

using ExitCodesTest = CliTest;

TEST_F(ExitCodesTest, ZeroForAPlan) {
  EXPECT_EQ(Acplan({"plan", ProfilePath("gpt2_small"), "--budget", "10GiB"})
                .exit_code,
            0);
}

TEST_F(ExitCodesTest, OneForABrokenPlan) {
  AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget", "10GiB", "-o",
             "plan.json"});
  EXPECT_EQ(Acplan({"check", ProfilePath("gpt2_small"), "plan.json", "--budget",
                    "9GiB"})
                .exit_code,
            1);
}

TEST_F(ExitCodesTest, OneWhereOutputCannotBeWritten) {
  const std::vector<std::vector<std::string>> commands{
      {"plan", ProfilePath("transformer4"), "--budget", "2GiB"},
      {"plan", ProfilePath("transformer4"), "--budget", "2GiB", "--json"},
      {"frontier", ProfilePath("transformer4"), "--points", "2"},
      {"frontier", ProfilePath("transformer4"), "--points", "2", "--csv"},
      {"show", "--modules", ProfilePath("transformer4")},
      {"show", ProfilePath("transformer4")},
      {"module", "curve", ProfilePath("transformer4"), "Transformer"},
      {"module", "policy", ProfilePath("transformer4"), "Transformer",
       "--memory-budget", "0.5"},
      {"calculon", "lpc", ACPLAN_DATA_DIR "/models/gpt3-13B.json"},
      {"calculon", "llm-find-huge"},
      {"train", "compare", ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json",
       "tp=2", "--gpu", "H100", "--gpus", "8"},
      {"train", "fit", ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json",
       "--gpu", "H100", "--gpus", "8"},
      {"completion", "bash"},
      {"version"},
      {"--version"},
      {"--help"},
      {"plan", "--help"}};
  for (const auto& command : commands) {
    for (const Stream stream : {Stream::kClosed, Stream::kFull}) {
      const Outcome outcome = Acplan(command, {.out = stream});
      EXPECT_EQ(outcome.exit_code, 1) << command[0];
      EXPECT_EQ(outcome.err, "acplan: cannot write to standard output\n");
    }
  }
}

TEST_F(ExitCodesTest, OneWhereThePlanFileCannotBeWritten) {
  const Outcome outcome = Acplan({"plan", ProfilePath("transformer4"),
                                  "--budget", "2GiB", "-o", "/dev/full"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("/dev/full: cannot be written"));
}

TEST_F(ExitCodesTest, TheFileIsWrittenThoughStdoutIsClosed) {
  const Outcome outcome =
      Acplan({"plan", ProfilePath("transformer4"), "--budget", "2GiB", "-o",
              "plan.json", "--json"},
             {.out = Stream::kClosed});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(json::parse(Read("plan.json"))["status"], "optimal");
}

TEST_F(ExitCodesTest, ClosedStderrIsNoFailure) {
  const Outcome outcome =
      Acplan({"plan", ProfilePath("transformer4"), "--budget", "2GiB", "--json",
              "--ac-units", "Transformer.output,Transformer.layers.0", "-o",
              "plan.json"},
             {.err = Stream::kClosed});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, Read("plan.json"));
}

TEST_F(ExitCodesTest, TwoWithoutACommand) {
  const Outcome outcome = Acplan({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("Usage: acplan"));
}

TEST_F(ExitCodesTest, FourWhereALimitIsHitWithoutAPlan) {
  const std::vector<std::string> arguments{
      "plan", ProfilePath("unet"), "--budget", "8GiB", "--time-limit", "0"};
  Outcome outcome = Acplan(arguments);
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.out, HasSubstr("no plan: stopped by the time limit"));

  std::vector<std::string> with_json = arguments;
  with_json.insert(with_json.end(), {"--json", "-o", "plan.json"});
  outcome = Acplan(with_json);
  EXPECT_EQ(outcome.exit_code, 4);
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["status"], "no_plan");
  EXPECT_EQ(plan["limit"], "time");
  EXPECT_TRUE(plan["modules"].empty());
  EXPECT_EQ(Read("plan.json"), outcome.out);
}

// CBC may not be able to prove the minimum.
TEST_F(ExitCodesTest, FourWhereTheMinimumIsNotProven) {
  int unproven = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const graph::Profile profile = test_support::RandomProfile(
        seed, {.most_modules = 40, .unmatched_post_order = 1});
    if (graph::ModuleTree(profile).PostOrderMatchesTree()) continue;
    SCOPED_TRACE(seed);
    PutFile("profile.json", ProfileToJson(profile));
    const std::vector<std::string> at_once{"--time-limit", "0", "-q", "-o",
                                           "out.json"};
    std::vector<std::string> arguments{"plan", "profile.json", "--budget",
                                       "min"};
    arguments.insert(arguments.end(), at_once.begin(), at_once.end());
    const Outcome outcome = Acplan(arguments);
    if (!outcome.err.starts_with("acplan: budget min: ")) continue;
    ++unproven;
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err,
                ContainsRegex("^acplan: budget min: stopped by the time limit "
                              "before the least budget was proven; some plan "
                              "fits in [^\n]+ bytes\\), none in less than "
                              "[^\n]+ bytes\\) \\(gap [^\n]+%\\)\n$"));
    EXPECT_FALSE(Exists("out.json"));
    arguments = {"frontier", "profile.json", "--budgets", "50%,min"};
    arguments.insert(arguments.end(), at_once.begin(), at_once.end());
    const Outcome frontier = Acplan(arguments);
    EXPECT_EQ(frontier.exit_code, 4);
    EXPECT_EQ(frontier.err, outcome.err);
    EXPECT_FALSE(Exists("out.json"));

    // Without limits it is proven and a budget.
    EXPECT_EQ(
        AcplanJson({"plan", "profile.json", "--budget", "min", "-q"})["status"],
        "optimal");
  }
  EXPECT_GT(unproven, 0);
}

struct Model {
  std::string profile, memory_model;
};

class MinimumBudgetTest : public CliTest,
                          public testing::WithParamInterface<Model> {};

TEST_P(MinimumBudgetTest, IsToldAndExact) {
  const auto plan = [&](int64_t budget, const std::string& format) {
    return Acplan({"plan", ProfilePath(GetParam().profile), "--budget",
                   fmt::format("{}", budget), "--memory-model",
                   GetParam().memory_model, "-q", format});
  };
  constexpr int64_t kGiB = int64_t{1} << 30;
  const Outcome refused = plan(kGiB, "--json");
  ASSERT_EQ(refused.exit_code, 3);
  const json answer = json::parse(refused.out);
  EXPECT_EQ(answer["status"], "infeasible");
  EXPECT_TRUE(answer["modules"].empty());
  const auto least = answer["minimum_budget_bytes"].get<int64_t>();
  EXPECT_GT(least, kGiB);

  const Outcome table = plan(kGiB, "--color=never");
  EXPECT_EQ(table.exit_code, 3);
  EXPECT_THAT(table.out, HasSubstr("infeasible: no plan fits in 1.00 GiB"));
  EXPECT_THAT(table.out, HasSubstr("the smallest feasible budget: "));

  const Outcome met = plan(least, "--json");
  EXPECT_EQ(met.exit_code, 0);
  EXPECT_EQ(json::parse(met.out)["status"], "optimal");
  EXPECT_EQ(json::parse(met.out)["peak_bytes"], least);

  const Outcome missed = plan(least - 1, "--json");
  EXPECT_EQ(missed.exit_code, 3);
  EXPECT_EQ(json::parse(missed.out)["minimum_budget_bytes"], least);
}

std::vector<Model> Models() {
  std::vector<Model> models;
  for (const char* profile :
       {"gpt2_small", "llama8b", "resnet50", "unet", "vit_large"}) {
    for (const char* memory_model : {"snapshot", "torch"}) {
      models.push_back({profile, memory_model});
    }
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Profiles, MinimumBudgetTest,
                         testing::ValuesIn(Models()),
                         [](const testing::TestParamInfo<Model>& model) {
                           return model.param.profile + "_" +
                                  model.param.memory_model;
                         });

TEST_P(MinimumBudgetTest, IsABudget) {
  const auto plan = [&](const std::string& budget,
                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"plan",
                                       ProfilePath(GetParam().profile),
                                       "--budget",
                                       budget,
                                       "--json",
                                       "--memory-model",
                                       GetParam().memory_model,
                                       "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Acplan(arguments);
  };
  for (const std::string granularity : {"operator", "module"}) {
    const std::vector<std::string> more{"--granularity", granularity};
    const Outcome least = plan("min", more);
    ASSERT_EQ(least.exit_code, 0) << least.err;
    const json met = json::parse(least.out);
    EXPECT_EQ(met["status"], "optimal");
    const auto bytes = met["budget_bytes"].get<int64_t>();
    EXPECT_EQ(met["peak_bytes"], bytes);
    const Outcome missed = plan(fmt::format("{}", bytes - 1), more);
    EXPECT_EQ(missed.exit_code, 3);
    EXPECT_EQ(json::parse(missed.out)["minimum_budget_bytes"], bytes);
    const Outcome reserved =
        plan("min", {"--granularity", granularity, "--reserve", "100MB"});
    EXPECT_EQ(json::parse(reserved.out)["budget_bytes"], bytes + 100'000'000);
    EXPECT_EQ(json::parse(reserved.out)["recompute_ms"], met["recompute_ms"]);
  }
}

TEST_F(ExitCodesTest, ThreeForAnOperatorPolicyThatCannotBe) {
  EXPECT_EQ(Acplan({"module", "policy", ProfilePath("transformer4"),
                    "Transformer", "--memory-budget", "0.01", "--save", "*mm"})
                .exit_code,
            3);
}

TEST_F(ExitCodesTest, TheMinimumHasTheReserveInIt) {
  const Outcome outcome = Acplan({"plan", ProfilePath("gpt2_small"), "--budget",
                                  "1GiB", "--reserve", "100MiB", "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(json::parse(outcome.out)["minimum_budget_bytes"],
            json::parse(Acplan({"plan", ProfilePath("gpt2_small"), "--budget",
                                "1GiB", "--json"})
                            .out)["minimum_budget_bytes"]
                    .get<int64_t>() +
                100 * (int64_t{1} << 20));
}

#ifndef __SANITIZE_ADDRESS__  // which asks for terabytes of addresses
TEST_F(ExitCodesTest, OneWithoutMemory) {
  // A small file of many values.
  std::string values = "[0";
  for (int k = 0; k < 5'000'000; ++k) values += ",[]";
  graph::WriteFile(folder() / "many.json.gz", values + "]");
  const auto run = [&](const std::string& flags, int kilobytes) {
    return Process("bash",
                   {"-c", fmt::format("ulimit -v {}; exec {} simulate "
                                      "many.json.gz {}",
                                      kilobytes, ACPLAN_PROGRAM, flags)},
                   folder())
        .Wait();
  };
  for (const int kilobytes : {100'000, 150'000, 200'000, 250'000}) {
    SCOPED_TRACE(kilobytes);
    const Outcome outcome = run("", kilobytes);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.err, "acplan: out of memory\n");
  }
  const Outcome as_json = run("--errors json", 200'000);
  EXPECT_EQ(json::parse(as_json.err),
            json({{"error", "out of memory"}, {"exit_code", 1}}));
}
#endif

}  // namespace

}  // namespace acplan::cli
