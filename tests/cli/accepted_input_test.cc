#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Input that looks odd and is valid.
class AcceptedInputTest : public CliTest {
 protected:
  // Returns the warnings about a plan of the edited profile, which `check`
  // accepts.
  std::string Warnings(const std::vector<Edit>& edits,
                       const std::vector<std::string>& more = {}) const {
    PutFile("profile.json", Edited(SmallProfile(), edits));
    return WarningsOfPlan(more);
  }

  std::string WarningsOfPlan(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"plan", "profile.json", "--budget",
                                       "2GiB", "-o",           "plan.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(json::parse(Read("plan.json"))["status"], "optimal");
    EXPECT_EQ(Acplan({"check", "profile.json", "plan.json", "--budget", "2GiB"})
                  .exit_code,
              0);
    EXPECT_EQ(Acplan({"show", "--modules", "profile.json"}).exit_code, 0);
    return outcome.err;
  }
};

TEST_F(AcceptedInputTest, NegativeActivationGradients) {
  EXPECT_EQ(Warnings({{"/modules/4/act_grad_per_module", "-1000000"}}), "");
  EXPECT_EQ(Warnings({{"/modules/4/act_grad_per_module", "-1000000"}},
                     {"--memory-model", "torch"}),
            "");
}

TEST_F(AcceptedInputTest, BackwardOrdersThatMissModules) {
  EXPECT_EQ(Warnings({{"/order/bw_pre/3", {}}, {"/order/bw_post", "[]"}}), "");
}

TEST_F(AcceptedInputTest, NeverCalledModules) {
  json profile = SmallProfile();
  json module = profile["modules"][1];
  module["fqn"] = "Transformer.unused";
  module["calls"] = 0;
  module.erase("snap");
  profile["modules"].push_back(module);
  module = profile["modules"][4];
  module["fqn"] = "Transformer.spare";
  module["calls"] = 0;
  profile["modules"].push_back(module);
  PutFile("profile.json", profile.dump());
  EXPECT_EQ(WarningsOfPlan({}), "");
  EXPECT_THAT(AcplanOut({"show", "--modules", "profile.json"}),
              HasSubstr("unused (never called)"));
  EXPECT_EQ(WarningsOfPlan({"--ac-units",
                            "Transformer.spare,Transformer.layers.0,"
                            "Transformer.layers.1"}),
            "acplan: warning: --ac-units: Transformer.spare is never called, "
            "so it cannot be an AC unit\n");
}

TEST_F(AcceptedInputTest, ANeverCalledModuleInTheOrders) {
  EXPECT_EQ(Warnings({{"/modules/4/calls", "0"}}), "");
  const json plan = json::parse(Read("plan.json"));
  for (const json& module : plan["modules"]) {
    EXPECT_NE(module["fqn"], SmallProfile()["modules"][4]["fqn"]);
  }
}

TEST_F(AcceptedInputTest, AReserveOfNothing) {
  EXPECT_EQ(Warnings({}, {"--reserve", "0"}), "");
}

TEST_F(AcceptedInputTest, AsManyUnitsAsThereAreNumbers) {
  EXPECT_EQ(Warnings({}, {"--max-units", "1000000000"}), "");
}

TEST_F(AcceptedInputTest, AModelThatFitsWithinAnyLimit) {
  const Outcome outcome = Acplan({"plan", ProfilePath("transformer4"),
                                  "--budget", "100GiB", "--time-limit", "0"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("optimal"));
}

TEST_F(AcceptedInputTest, TimesThatAreTiny) {
  json profile = SmallProfile();
  for (json& module : profile["modules"]) {
    if (!module.contains("torch_fit")) continue;
    double runtime = module["torch_fit"]["sac_runtime"];
    module["torch_fit"]["sac_runtime"] = runtime / 1048576 / 1048576;
    for (json& ms : module["sac"]["runtimes"]) {
      ms = ms.get<double>() / 1048576 / 1048576;
    }
  }
  for (const std::string tradeoff : {"pareto", "fit", "profile"}) {
    const auto recompute = [&](const json& document) {
      PutFile("profile.json", document.dump());
      return AcplanJson({"plan", "profile.json", "--budget", "1.6GiB",
                         "--tradeoff", tradeoff})["recompute_ms"]
          .get<double>();
    };
    EXPECT_DOUBLE_EQ(recompute(profile) * 1048576 * 1048576,
                     recompute(SmallProfile()))
        << tradeoff;
  }
}

// The same numbers give the same plan as a profile and as PyTorch's ModuleInfo.
TEST_F(AcceptedInputTest, ModuleInfoOfPyTorch) {
  json profile = SmallProfile();
  json info;
  for (const auto& [key, order] : profile["order"].items()) {
    info["mod_order"][key + "_order"] = order;
  }
  for (json module : profile["modules"]) {
    const json fit = module.value("torch_fit", json::object());
    module.update(fit);
    module["tradeoff_curve"] = json::object();
    for (const json& point : fit.value("tradeoff_curve", json::array())) {
      module["tradeoff_curve"][point[0].dump()] = point[1];
    }
    for (const char* key : {"sac", "snap", "torch_fit"}) module.erase(key);
    info["mod_stats"].push_back(module);
  }
  PutFile("profile.json", profile.dump());
  PutFile("info.json", info.dump());
  for (const char* budget : {"2GiB", "1.6GiB", "min"}) {
    const json expected =
        AcplanJson({"plan", "profile.json", "--budget", budget, "--tradeoff",
                    "profile", "--memory-model", "torch"});
    const json plan = AcplanJson({"plan", "info.json", "--budget", budget});
    EXPECT_EQ(plan["model"], "Transformer");
    for (const char* key : {"modules", "recompute_ms", "peak_bytes", "baseline",
                            "memory_model", "tradeoff", "status"}) {
      EXPECT_EQ(plan[key], expected[key]) << budget << ' ' << key;
    }
  }
  EXPECT_THAT(Acplan({"plan", "info.json", "--budget", "2GiB", "--granularity",
                      "operator"})
                  .err,
              HasSubstr("no operator statistics"));
  EXPECT_EQ(Acplan({"module", "policy", "info.json", "Transformer.layers.0",
                    "--memory-budget", "0.5"})
                .exit_code,
            2);
}

TEST_F(AcceptedInputTest, NullFits) {
  const std::vector<std::string> by_fits{"--tradeoff", "profile"};
  EXPECT_THAT(Warnings({{"/modules/4/torch_fit", "null"}}, by_fits),
              StartsWith("acplan: warning: Transformer.layers.0: no "
                         "usable trade-off fit"));
  EXPECT_THAT(Warnings({{"/modules/4/torch_fit/slopes/0", "null"},
                        {"/modules/18/torch_fit/intercepts/0", "null"}},
                       by_fits),
              StartsWith("acplan: warning: Transformer.layers.* (2 modules): "
                         "no usable trade-off fit"));
}

TEST_F(AcceptedInputTest, ModulesWithoutOperators) {
  const std::string warning =
      "acplan: warning: Transformer.layers.0: no operator statistics, so it "
      "cannot be an AC unit\n";
  const std::vector<Edit> edits{{"/modules/4/sac", "null"}};
  EXPECT_EQ(Warnings(edits), warning);
  EXPECT_EQ(Warnings(edits, {"--granularity", "module"}), warning);
  EXPECT_EQ(Warnings(edits, {"--tradeoff", "fit"}), warning);
  EXPECT_EQ(Warnings(edits, {"--tradeoff", "profile"}), "");
}

TEST_F(AcceptedInputTest, AProfileWithFitsOnly) {
  json profile = SmallProfile();
  for (json& module : profile["modules"]) module.erase("sac");
  PutFile("profile.json", profile.dump());
  EXPECT_EQ(WarningsOfPlan({}), "");
  const json plan = json::parse(Read("plan.json"));
  EXPECT_EQ(plan["granularity"], "module");
  EXPECT_EQ(plan["tradeoff"], "profile");
  EXPECT_FALSE(plan["modules"].empty());
  EXPECT_THAT(AcplanOut({"plan", "profile.json", "--budget", "2GiB"}),
              HasSubstr("\nmodule granularity, trade-off profile\n"));
}

TEST_F(AcceptedInputTest, ZeroByteOperators) {
  EXPECT_EQ(Warnings({{"/modules/4/sac/memory/0", "0"},
                      {"/modules/4/sac/runtimes/0", "0"}}),
            "");
}

TEST_F(AcceptedInputTest, UnknownKeys) {
  EXPECT_EQ(Warnings({{"/comment", "\"mine\""},
                      {"/modules/4/note", "[1, null]"},
                      {"/model/license", "{}"}}),
            "");
}

TEST_F(AcceptedInputTest, MissingOptionalKeys) {
  EXPECT_EQ(Warnings({{"/model", {}},
                      {"/device", {}},
                      {"/measured", {}},
                      {"/export", {}},
                      {"/modules/4/calls", {}},
                      {"/modules/4/no_backward", {}},
                      {"/modules/4/buffer_per_module", {}}}),
            "");
}

TEST_F(AcceptedInputTest, WholeNumbersAsFractions) {
  EXPECT_EQ(Warnings({{"/modules/4/act_total", "1e6"}}), "");
}

TEST_F(AcceptedInputTest, ALeafAmongTheAcUnits) {
  EXPECT_EQ(
      Warnings({}, {"--ac-units", "Transformer.output,Transformer.layers.0"}),
      "acplan: warning: --ac-units: Transformer.output is a leaf; leaves are "
      "never AC units\n");
}

TEST_F(AcceptedInputTest, AnAncestorOfAnFsdpUnitAmongTheAcUnits) {
  EXPECT_EQ(Warnings({}, {"--ac-units",
                          "Transformer,Transformer.layers.0,"
                          "Transformer.layers.1",
                          "--fsdp-units", "Transformer.layers.0"}),
            "acplan: warning: --ac-units: Transformer contains an FSDP unit, "
            "so it cannot be an AC unit\n");
}

TEST_F(AcceptedInputTest, EmptyLists) {
  PutFile("none.txt", "");
  EXPECT_EQ(Warnings({}, {"--ac-units", "", "--fsdp-units", "@none.txt"}), "");
}

TEST_F(AcceptedInputTest, RepeatedListsAreJoined) {
  EXPECT_EQ(Warnings({}, {"--ac-units", "Transformer.layers.0", "--ac-units",
                          "Transformer.layers.1"}),
            "");
}

TEST_F(AcceptedInputTest, SizesInEveryForm) {
  for (const char* budget : {"2GiB", "2 GiB", "2048MiB", "2147483648",
                             "2147483648B", "2147.483648MB", " 2GiB "}) {
    EXPECT_EQ(AcplanJson({"plan", ProfilePath("transformer4"), "--budget",
                          budget})["budget_bytes"],
              2147483648)
        << budget;
  }
}

TEST_F(AcceptedInputTest, ATorchModelNeedsNoSnapshots) {
  EXPECT_EQ(Warnings({{"/modules/3/snap", {}}}), "");
  EXPECT_EQ(json::parse(Read("plan.json"))["memory_model"], "torch");
}

TEST_F(AcceptedInputTest, AModuleOutsideOfItsParentsForward) {
  json profile = SmallProfile();
  json& fw_post = profile["order"]["fw_post"];
  fw_post.push_back(fw_post[5]);
  fw_post.erase(5);
  PutFile("profile.json", profile.dump());
  EXPECT_EQ(WarningsOfPlan({}), "");
  EXPECT_EQ(json::parse(Read("plan.json"))["solver"]["name"], "cbc");
}

}  // namespace

}  // namespace acplan::cli
