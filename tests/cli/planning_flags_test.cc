#include "cli/input/planning_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "cli/command.h"
#include "graph/base/input_error.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using problems::Budget;
using problems::Engine;
using problems::Granularity;
using problems::PlanOptions;
using problems::Tradeoff;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

template <typename Call>
std::string FlagErrorOf(Call call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Budget Parsed(const std::string& text) { return ParseBudget(text, "--budget"); }

int64_t ShareOf(const std::string& text, int64_t unplanned_peak_bytes) {
  return Parsed(text).Bytes(unplanned_peak_bytes);
}

TEST(ParseBudgetTest, Sizes) {
  EXPECT_EQ(Parsed("1.5GiB").kind, Budget::Kind::kBytes);
  EXPECT_EQ(Parsed("1.5GiB").bytes, 1'610'612'736);
  EXPECT_EQ(Parsed("1600MB").bytes, 1'600'000'000);
  EXPECT_EQ(Parsed("101").bytes, 101);
  EXPECT_EQ(Parsed("75B").bytes, 75);
  EXPECT_EQ(ShareOf("750", 1000), 750);
  EXPECT_EQ(ParseBudget("75", "--budget", /*may_be_tiny=*/true).bytes, 75);
  EXPECT_EQ(FlagErrorOf([] { Parsed("75"); }),
            "--budget: found \"75\", which is 75 bytes; did you mean 75% (of "
            "the baseline) or 75GiB?");
  EXPECT_THAT(FlagErrorOf([] { Parsed("1.6"); }),
              AllOf(StartsWith("--budget: expected a size such as 1.6GiB"),
                    HasSubstr("a fraction needs a unit")));
}

TEST(ParseBudgetTest, Shares) {
  EXPECT_EQ(Parsed("75%").kind, Budget::Kind::kShare);
  EXPECT_EQ(Parsed("75%").share, 0.75);
  EXPECT_EQ(ShareOf("75%", 1000), 750);
  EXPECT_EQ(ShareOf("0.5%", 1000), 5);
  EXPECT_EQ(ShareOf("100%", 9'953'203'713), 9'953'203'713);
  EXPECT_EQ(ShareOf("250%", 1000), 2500);
  EXPECT_EQ(ShareOf("1e2%", 1000), 1000);
}

TEST(ParseBudgetTest, SharesAreBudgetsOfSomething) {
  EXPECT_EQ(ShareOf("0.5%", 199), 1);  // never 0
  EXPECT_EQ(ShareOf("99%", 101), 99);  // rounded down
  EXPECT_EQ(ShareOf("100%", 0), 1);
  EXPECT_EQ(ShareOf("1000000%", int64_t{1} << 60), int64_t{1} << 62);
}

TEST(ParseBudgetTest, RefusesWhatIsNoShare) {
  for (const char* text : {"0%", "-5%", "%", "nan%", "inf%", "1e400%", "75 %",
                           "x%", "75%%", "min%", "1.6GiB%", "1000001%"}) {
    EXPECT_EQ(FlagErrorOf([&] { Parsed(text); }),
              "--budget: expected a share of the baseline such as 75%, found "
              "\"" +
                  std::string(text) + "\"");
  }
}

TEST(ParseBudgetTest, TheMinimum) {
  EXPECT_EQ(Parsed("min").kind, Budget::Kind::kMinimum);
  EXPECT_THAT(FlagErrorOf([] { Parsed("MIN"); }), StartsWith("--budget: "));
}

TEST(RequireMinimumTest, SaysWhatStoppedTheProofAndHowNearItIs) {
  problems::LeastAnswer least{
      .budget = {.bytes = 4 << 20,
                 .bound_bytes = 3 << 20,
                 .stopped_by = solver::StoppedBy::kUnproven}};
  const auto text = [&] {
    try {
      RequireMinimum(least);
    } catch (const LimitError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string rest =
      " before the least budget was proven; some plan fits in 4.00 MiB "
      "(4,194,304 bytes), none in less than 3.00 MiB (3,145,728 bytes) (gap "
      "25.00%)";
  EXPECT_EQ(text(), "budget min: the search ended" + rest);
  least.budget.stopped_by = solver::StoppedBy::kTime;
  EXPECT_EQ(text(), "budget min: stopped by the time limit" + rest);
  least.budget.stopped_by = solver::StoppedBy::kInterrupt;
  EXPECT_EQ(text(), "budget min: interrupted" + rest);
  // There is an answer if a plan is known.
  least.has_plan = true;
  EXPECT_EQ(text(), "");
  least = {.budget = {.bytes = 7, .proven = true, .bound_bytes = 7}};
  EXPECT_EQ(text(), "");
}

class PlanningFlagsTest : public testing::Test {
 protected:
  PlanOptions Options() const {
    return flags_.Options({.profile = profile_, .trace = {}}, 7);
  }
  std::string Error() const {
    return FlagErrorOf([&] {
      BuildPlanningProblem(profile_, graph::ModuleTree(profile_), Options());
    });
  }

  graph::Profile profile_ = graph::ReadProfile(ProfilePath("transformer4"));
  PlanningFlags flags_;
};

TEST_F(PlanningFlagsTest, Defaults) {
  const PlanOptions options = Options();
  EXPECT_EQ(options.granularity, Granularity::kOperator);
  EXPECT_EQ(options.tradeoff, Tradeoff::kPareto);
  EXPECT_EQ(options.engine, Engine::kAuto);
  EXPECT_EQ(options.reserve_bytes, 0);
  EXPECT_TRUE(options.patterns.empty());
  EXPECT_TRUE(std::isinf(options.limits.time_limit_s));
  EXPECT_EQ(options.limits.gap, 0);
  EXPECT_EQ(Error(), "");
}

TEST_F(PlanningFlagsTest, OnTracesOperatorsMayBeSkippedForSomeTime) {
  const ProfileInput trace =
      ReadProfileOrTrace(ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz");
  const auto seconds = [&](const std::string& limit) {
    flags_.time_limit = limit;
    return flags_.Options(trace, 7).limits.time_limit_s;
  };
  EXPECT_TRUE(flags_.Options(trace, 7).may_skip);
  flags_.decisions = "save,recompute,skip";
  EXPECT_TRUE(flags_.Options(trace, 7).may_skip);
  flags_.decisions.clear();
  EXPECT_EQ(seconds(""), 7);
  EXPECT_EQ(seconds("70"), 70);
  EXPECT_TRUE(std::isinf(seconds("none")));
  for (std::string* flag : {&flags_.decisions, &flags_.memory.model}) {
    *flag = flag == &flags_.decisions ? "save,recompute" : "snapshot";
    EXPECT_FALSE(flags_.Options(trace, 7).may_skip);
    EXPECT_TRUE(std::isinf(seconds("")));
    EXPECT_EQ(seconds("70"), 70);
    flag->clear();
  }
}

TEST_F(PlanningFlagsTest, OperatorsAreSkippedWhereDecisionsSaySo) {
  EXPECT_FALSE(Options().may_skip);
  flags_.decisions = "save,recompute";
  EXPECT_FALSE(Options().may_skip);
  flags_.decisions = "save,recompute,skip";
  EXPECT_EQ(Error(),
            "--decisions: expected save,recompute, as skip needs a plan on a "
            "trace under the memory model trace");
  flags_.decisions = "skip";
  EXPECT_EQ(Error(),
            "--decisions: expected save,recompute or save,recompute,skip, "
            "found 'skip'");
}

TEST_F(PlanningFlagsTest, AFitAloneImpliesModules) {
  for (const std::string kind : {"fit", "profile"}) {
    flags_.tradeoff = kind;
    EXPECT_EQ(Options().granularity, Granularity::kModule);
    EXPECT_EQ(ToString(Options().tradeoff), kind);
    EXPECT_EQ(Error(), "");
  }
  flags_.tradeoff = "pareto";
  EXPECT_EQ(Options().granularity, Granularity::kOperator);
}

TEST_F(PlanningFlagsTest, ModulesAloneImplyTheParetoList) {
  flags_.granularity = "module";
  EXPECT_EQ(Options().granularity, Granularity::kModule);
  EXPECT_EQ(Options().tradeoff, Tradeoff::kPareto);
  EXPECT_EQ(Error(), "");
}

TEST_F(PlanningFlagsTest, RefusesWhatDoesNotGoTogether) {
  flags_.granularity = "operator";
  for (const std::string kind : {"fit", "profile"}) {
    flags_.tradeoff = kind;
    EXPECT_EQ(
        Error(),
        "tradeoff: expected pareto at operator granularity, found " + kind);
  }
  flags_.tradeoff.clear();
  flags_.granularity = "module";
  flags_.patterns.save = {"mm"};
  EXPECT_EQ(Error(), "save: needs operator granularity, found module");
  std::swap(flags_.patterns.save, flags_.patterns.recompute);
  EXPECT_THAT(Error(), StartsWith("recompute: needs operator granularity"));
  flags_.granularity.clear();
  flags_.tradeoff = "fit";
  EXPECT_THAT(Error(), StartsWith("recompute: needs operator granularity"));
}

TEST_F(PlanningFlagsTest, RefusesUnknownKinds) {
  flags_.granularity = "tensor";
  EXPECT_EQ(Error(),
            "--granularity: expected operator or module, found "
            "'tensor'");
  flags_.granularity.clear();
  flags_.tradeoff = "greedy";
  EXPECT_EQ(Error(),
            "--tradeoff: expected pareto, fit or profile, found 'greedy'");
  flags_.tradeoff.clear();
  flags_.engine = "glpk";
  EXPECT_EQ(Error(), "--engine: expected auto, labels or cbc, found 'glpk'");
}

TEST_F(PlanningFlagsTest, AProfileWithFitsOnlyIsPlannedByThem) {
  for (graph::Module& module : profile_.modules) module.sac.reset();
  EXPECT_EQ(Options().granularity, Granularity::kModule);
  EXPECT_EQ(Options().tradeoff, Tradeoff::kProfile);
  EXPECT_EQ(Error(), "");

  // But not if something else is requested.
  flags_.granularity = "operator";
  EXPECT_EQ(Options().granularity, Granularity::kOperator);
  EXPECT_EQ(Options().tradeoff, Tradeoff::kPareto);
  flags_.granularity = "module";
  EXPECT_EQ(Options().tradeoff, Tradeoff::kPareto);
  flags_.granularity.clear();
  flags_.tradeoff = "pareto";
  EXPECT_EQ(Options().granularity, Granularity::kOperator);
  flags_.tradeoff.clear();
  flags_.patterns.save = {"mm"};
  EXPECT_THAT(Error(), StartsWith("--save: expected a pattern that matches"));
}

TEST_F(PlanningFlagsTest, OneModuleWithOperatorsIsEnough) {
  bool is_first = true;
  for (graph::Module& module : profile_.modules) {
    if (!module.sac) continue;
    if (!is_first) module.sac.reset();
    is_first = false;
  }
  EXPECT_EQ(Options().granularity, Granularity::kOperator);
}

TEST_F(PlanningFlagsTest, WithoutOperatorsAndFitsNothingChanges) {
  for (graph::Module& module : profile_.modules) {
    module.sac.reset();
    module.torch_fit.reset();
  }
  EXPECT_EQ(Options().granularity, Granularity::kOperator);
}

TEST(ChoiceTextTest, SaysWhatWasAsked) {
  PlanOptions options;
  EXPECT_EQ(ChoiceText(options), "operator granularity");
  options.patterns = {.save = {"mm", "b*"}, .recompute = {"ge\nlu"}};
  EXPECT_EQ(ChoiceText(options),
            "operator granularity, save mm|b*, recompute ge\\nlu");
  options = {.granularity = Granularity::kModule, .tradeoff = Tradeoff::kFit};
  EXPECT_EQ(ChoiceText(options), "module granularity, trade-off fit");
}

}  // namespace

}  // namespace acplan::cli
