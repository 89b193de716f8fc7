#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kLayer[] = "Transformer.layers.0";

class OpsCommandTest : public CliTest {
 protected:
  std::vector<std::string> Ops(const std::string& memory_budget,
                               const std::vector<std::string>& more = {},
                               const std::string& profile = {}) const {
    std::vector<std::string> arguments{
        "module",
        "policy",
        profile.empty() ? ProfilePath("transformer4") : profile,
        kLayer,
        "--memory-budget",
        memory_budget};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

const json& LayerOf(const json& profile) {
  for (const json& module : profile["modules"]) {
    if (module["fqn"] == kLayer) return module;
  }
  throw std::logic_error("no such module");
}

TEST_F(OpsCommandTest, JsonAgreesWithTheProfile) {
  const json& sac = LayerOf(SmallProfile())["sac"];
  for (const std::string budget : {"0", "0.1", "0.25", "0.5", "0.9", "1"}) {
    const json answer = AcplanJson(Ops(budget));
    EXPECT_EQ(answer["module"], kLayer);
    EXPECT_EQ(answer["memory_budget"], std::stod(budget));
    EXPECT_EQ(answer["status"], "optimal");
    EXPECT_FALSE(answer.contains("minimum_memory_budget"));
    const size_t n = sac["memory"].size();
    ASSERT_THAT(answer["policy"], SizeIs(n));
    ASSERT_THAT(answer["ops"], SizeIs(n));
    int64_t total = 0;
    int64_t saved_bytes = 0;
    double saved_ms = 0;
    double recompute_ms = 0;
    for (size_t k = 0; k < n; ++k) {
      const json& op = answer["ops"][k];
      const bool save = answer["policy"][k] == 1;
      EXPECT_TRUE(save || answer["policy"][k] == 0);
      EXPECT_EQ(op["index"], k);
      EXPECT_EQ(op["name"], sac["func_names"][k]);
      EXPECT_EQ(op["runtime_ms"], sac["runtimes"][k]);
      EXPECT_EQ(op["memory_bytes"], sac["memory"][k]);
      EXPECT_EQ(op["decision"], save ? "save" : "recompute");
      total += sac["memory"][k].get<int64_t>();
      if (save) saved_bytes += sac["memory"][k].get<int64_t>();
      (save ? saved_ms : recompute_ms) += sac["runtimes"][k].get<double>();
    }
    EXPECT_EQ(answer["capacity_bytes"],
              std::ceil(std::stod(budget) * static_cast<double>(total)));
    EXPECT_LE(answer["saved_bytes"], answer["capacity_bytes"]);
    EXPECT_EQ(answer["saved_bytes"], saved_bytes);
    EXPECT_NEAR(answer["saved_ms"], saved_ms, 1e-9);
    EXPECT_NEAR(answer["recompute_ms"], recompute_ms, 1e-9);
    EXPECT_EQ(answer["bound_ms"], answer["recompute_ms"]);
    for (const json& view : sac["view_like_ops"]) {
      EXPECT_EQ(answer["policy"][view.get<size_t>()], 0);
      EXPECT_EQ(answer["ops"][view.get<size_t>()]["rule"], "view-like");
    }
    for (const json& random : sac["rand_ops"]) {
      EXPECT_EQ(answer["policy"][random.get<size_t>()],
                answer["policy"][sac["rand_ops"][0].get<size_t>()]);
    }
  }
}

TEST_F(OpsCommandTest, TheTableHasWhatAPersonNeeds) {
  const std::string out = AcplanOut(Ops("0.25"));
  EXPECT_THAT(out, StartsWith("Transformer.layers.0 of transformer4, 40 "
                              "operators, memory 468.50 MiB, run-time "));
  EXPECT_THAT(out, HasSubstr("memory budget 0.25, capacity 117.13 MiB "
                             "(122,814,720 bytes)\n"));
  EXPECT_THAT(out, ContainsRegex("\n\\[0, 0, 0, 1, [01, ]+\\]\n"));
  EXPECT_THAT(out, ContainsRegex("\n 1  t +0.0000 ms +0 B  recompute  view"));
  EXPECT_THAT(out, ContainsRegex("\n 3  mm +0\\.[0-9]+ ms +24.00 MiB  save\n"));
  EXPECT_THAT(out, ContainsRegex("\n 5  saved +[0-9.]+ ms +96.00 MiB\n"));
  EXPECT_THAT(out, ContainsRegex("\n35  recomputed +[0-9.]+ ms +372.50 MiB\n"));
  EXPECT_THAT(out, HasSubstr("optimal: no policy within the capacity "
                             "recomputes less (gap 0, "));
  EXPECT_THAT(out, Not(HasSubstr("\033")));
}

TEST_F(OpsCommandTest, TheVectorIsThePolicy) {
  const json policy = AcplanJson(Ops("0.4"))["policy"];
  std::string vector = policy.dump();
  for (size_t place = 0; (place = vector.find(',', place)) != std::string::npos;
       ++place) {
    vector.insert(place + 1, " ");
  }
  EXPECT_THAT(AcplanOut(Ops("0.4")), HasSubstr("\n" + vector + "\n"));
}

TEST_F(OpsCommandTest, EnginesAgree) {
  for (const std::string budget : {"0", "0.2", "0.37", "0.8", "1"}) {
    double ms = -1;
    for (const std::string engine : {"auto", "labels", "cbc"}) {
      const json answer = AcplanJson(Ops(budget, {"--engine", engine}));
      EXPECT_EQ(answer["status"], "optimal");
      EXPECT_EQ(answer["solver"]["name"], engine == "auto" ? "labels" : engine);
      if (ms < 0) ms = answer["recompute_ms"];
      EXPECT_NEAR(answer["recompute_ms"], ms, 1e-6 * ms);
    }
  }
}

TEST_F(OpsCommandTest, ItIsAPointOfTheParetoList) {
  const json curve = AcplanJson({"module", "curve", ProfilePath("transformer4"),
                                 kLayer, "--save", "gelu"});
  for (const json& point : curve["pareto"]) {
    const json answer =
        AcplanJson(Ops(fmt::format("{}", point["memory_budget"].get<double>()),
                       {"--save", "gelu"}));
    EXPECT_NEAR(answer["recompute_ms"], point["recompute_ms"].get<double>(),
                1e-9);
  }
}

TEST_F(OpsCommandTest, PatternsAreObeyedAndNamed) {
  const json answer = AcplanJson(
      Ops("0.6", {"--save", "addmm", "--recompute", "mm|native_l*"}));
  int matches = 0;
  for (const json& op : answer["ops"]) {
    const std::string name = op["name"];
    if (name == "addmm") {
      EXPECT_EQ(op["decision"], "save");
      EXPECT_EQ(op["rule"], "--save addmm");
    } else if (name == "mm") {
      EXPECT_EQ(op["decision"], "recompute");
      EXPECT_EQ(op["rule"], "--recompute mm");
    } else if (name == "native_layer_norm") {
      EXPECT_EQ(op["decision"], "recompute");
      EXPECT_EQ(op["rule"], "--recompute native_l*");
    } else {
      continue;
    }
    ++matches;
  }
  EXPECT_EQ(matches, 2 + 4 + 2);
}

TEST_F(OpsCommandTest, RulesAreNamed) {
  PutFile(
      "profile.json",
      Edited(
          SmallProfile(),
          {{"/modules/4/sac",
            R"({"func_names": ["mm", "relu_", "add_", "view", "rand", "rand"],
                   "runtimes": [4, 1, 1, 0, 1, 1],
                   "memory": [100, 10, 10, 10, 50, 50],
                   "view_like_ops": [3], "rand_ops": [4, 5],
                   "saved_autograd_ops": [],
                   "inplace_ops": [[1, 0], [2, 2]],
                   "force_store_random": false})"}}));
  const auto rules = [&](const std::vector<std::string>& more) {
    const json answer = AcplanJson(Ops("1", more, "profile.json"));
    std::vector<std::string> all;
    for (const json& op : answer["ops"]) {
      all.push_back(op["rule"]);
    }
    return all;
  };
  EXPECT_THAT(rules({}),
              testing::ElementsAre("", "in place with 0", "in place on itself",
                                   "view-like", "random", "random"));
  EXPECT_THAT(rules({"--save", "r*"}),
              testing::ElementsAre("", "in place with 0, --save r*",
                                   "in place on itself", "view-like",
                                   "random, --save r*", "random, --save r*"));
  PutFile("profile.json",
          Edited(json::parse(Read("profile.json")),
                 {{"/modules/4/sac/force_store_random", "true"}}));
  EXPECT_THAT(rules({}),
              testing::ElementsAre("", "in place with 0", "in place on itself",
                                   "view-like", "random, to be saved",
                                   "random, to be saved"));
}

TEST_F(OpsCommandTest, InfeasibleTellsTheLeastBudget) {
  for (const std::string engine : {"labels", "cbc"}) {
    const std::vector<std::string> more{"--save", "add*", "--engine", engine};
    const Outcome outcome = Acplan(Ops("0.25", more));
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out,
                HasSubstr("infeasible: the operators that must be saved take "
                          "144.00 MiB (150,994,944 bytes)\n"));
    EXPECT_THAT(outcome.out,
                HasSubstr("the least memory budget that works: 0.307364\n"));

    std::vector<std::string> with_json = more;
    with_json.emplace_back("--json");
    const Outcome answer = Acplan(Ops("0.25", with_json));
    EXPECT_EQ(answer.exit_code, 3);
    const json infeasible = json::parse(answer.out);
    EXPECT_EQ(infeasible["status"], "infeasible");
    EXPECT_EQ(infeasible["minimum_memory_budget"], 0.307364);
    EXPECT_TRUE(infeasible["policy"].empty());
    EXPECT_TRUE(infeasible["ops"].empty());
    EXPECT_FALSE(infeasible.contains("saved_bytes"));

    EXPECT_EQ(Acplan(Ops("0.307364", more)).exit_code, 0);
    EXPECT_EQ(Acplan(Ops("0.307363", more)).exit_code, 3);
  }
}

// If a byte is a large share, the least budget is below forced / total.
TEST_F(OpsCommandTest, TheCapacityIsRoundedUp) {
  PutFile(
      "profile.json",
      Edited(SmallProfile(), {{"/modules/4/sac",
                               R"({"func_names": ["a", "b"], "runtimes": [1, 1],
                   "memory": [2, 1], "view_like_ops": [], "rand_ops": [],
                   "saved_autograd_ops": [], "inplace_ops": [[0, 0]],
                   "force_store_random": false})"}}));
  const auto exit_code = [&](const std::string& budget) {
    return Acplan(Ops(budget, {}, "profile.json")).exit_code;
  };
  EXPECT_THAT(Acplan(Ops("0", {}, "profile.json")).out,
              HasSubstr("works: 0.333334\n"));
  EXPECT_EQ(exit_code("0.333334"), 0);
  EXPECT_EQ(exit_code("0.333333"), 3);
  EXPECT_EQ(exit_code("-0"), 3);
  EXPECT_EQ(exit_code("1"), 0);
}

TEST_F(OpsCommandTest, TheFileIsWhatJsonPrints) {
  const std::vector<std::string> bad{"--save", "add*"};
  for (const char* name : {"ops.json", "ops.json.gz"}) {
    AcplanOut(Ops("0.5", {"-o", name}));
    json file = json::parse(graph::ReadFile(folder() / name));
    json printed = AcplanJson(Ops("0.5"));
    file.erase("solver");
    printed.erase("solver");
    EXPECT_EQ(file, printed);
  }
  EXPECT_EQ(
      Acplan(Ops("0", {"--save", "add*", "-o", "infeasible.json"})).exit_code,
      3);
  EXPECT_EQ(json::parse(Read("infeasible.json"))["status"], "infeasible");
}

TEST_F(OpsCommandTest, LimitsAreSaid) {
  EXPECT_TRUE(AcplanJson(Ops("0.5"))["limit"].is_null());
  EXPECT_TRUE(
      AcplanJson(Ops("0.5", {"--time-limit", "60"}))["limit"].is_null());
  const std::vector<std::string> none{"--engine", "cbc", "--time-limit", "0"};
  EXPECT_EQ(Acplan(Ops("0.5", none)).exit_code, 4);
  EXPECT_THAT(Acplan(Ops("0.5", none)).out,
              HasSubstr("no policy: stopped by the time limit before a policy "
                        "was found"));
  std::vector<std::string> as_json = none;
  as_json.push_back("--json");
  const json stopped = json::parse(Acplan(Ops("0.5", as_json)).out);
  EXPECT_EQ(stopped["status"], "no_policy");
  EXPECT_EQ(stopped["limit"], "time");
  for (const char* bad : {"-1", "x", "nan"}) {
    EXPECT_THAT(Acplan(Ops("0.5", {"--time-limit", bad})).err,
                HasSubstr("--time-limit: expected"));
  }
}

TEST_F(OpsCommandTest, AModuleWithoutMemory) {
  PutFile("profile.json",
          Edited(SmallProfile(),
                 {{"/modules/4/sac",
                   R"({"func_names": ["mm"], "runtimes": [0.5], "memory": [0],
                   "view_like_ops": [], "rand_ops": [],
                   "saved_autograd_ops": [], "inplace_ops": [],
                   "force_store_random": false})"}}));
  const json answer = AcplanJson(Ops("0", {}, "profile.json"));
  EXPECT_EQ(answer["capacity_bytes"], 0);
  EXPECT_EQ(answer["policy"], json({1}));
  EXPECT_EQ(answer["recompute_ms"], 0);
  EXPECT_THAT(AcplanOut(Ops("0", {}, "profile.json")), Not(HasSubstr("nan")));
}

}  // namespace

}  // namespace acplan::cli
