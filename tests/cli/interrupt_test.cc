#include <chrono>
#include <csignal>
#include <thread>

#include "problems/plan/plan.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

// Returns a search that takes CBC minutes.
std::vector<std::string> LongSearch(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{
      "plan",    ProfilePath("llama8b"), "--engine", "cbc",      "--tradeoff",
      "profile", "--memory-model",       "torch",    "--budget", "47526790574"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class InterruptTest : public CliTest {
 protected:
  // Sends the signal a second after the search has begun.
  Outcome Interrupt(std::vector<std::string> arguments, int signal) const {
    arguments.emplace_back("--verbose");
    Process process(ACPLAN_PROGRAM, LongSearch(arguments), folder());
    while (process.ErrSoFar().find("searching") == std::string::npos &&
           !process.HasEnded()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_FALSE(process.HasEnded());
    const auto sent_at = std::chrono::steady_clock::now();
    process.Signal(signal);
    Outcome outcome = process.Wait();
    EXPECT_LT(std::chrono::steady_clock::now() - sent_at,
              std::chrono::seconds(60));
    return outcome;
  }
};

TEST_F(InterruptTest, CtrlCGivesTheBestPlanSoFar) {
  const Outcome outcome = Interrupt({"--json", "-o", "plan.json"}, SIGINT);
  EXPECT_THAT(outcome.exit_code, AnyOf(0, 4));
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["limit"], "interrupted");
  EXPECT_EQ(Read("plan.json"), outcome.out);
  problems::ReadPlan(folder() / "plan.json");
  if (outcome.exit_code == 4) {
    EXPECT_EQ(plan["status"], "no_plan");
    return;
  }
  EXPECT_EQ(plan["status"], "feasible");
  EXPECT_LT(plan["bound_ms"], plan["recompute_ms"]);
  EXPECT_GT(plan["gap"], 0);
  EXPECT_THAT(AcplanOut({"check", ProfilePath("llama8b"), "plan.json",
                         "--budget", "47526790574"}),
              HasSubstr("holds: "));
}

TEST_F(InterruptTest, TheTableSaysSo) {
  const Outcome outcome = Interrupt({}, SIGTERM);
  EXPECT_THAT(outcome.exit_code, AnyOf(0, 4));
  EXPECT_THAT(outcome.out, AnyOf(HasSubstr("feasible, interrupted: no plan "
                                           "recomputes less than "),
                                 HasSubstr("no plan: interrupted before")));
}

TEST_F(InterruptTest, ATimeLimitGivesTheBestPlanSoFar) {
  const Outcome outcome =
      Acplan(LongSearch({"--time-limit", "4", "--json", "-o", "plan.json"}));
  EXPECT_THAT(outcome.exit_code, AnyOf(0, 4));
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["limit"], "time");
  EXPECT_EQ(plan["status"], outcome.exit_code == 0 ? "feasible" : "no_plan");
}

TEST_F(InterruptTest, AGapEndsTheSearchEarly) {
  const json plan = AcplanJson({"plan", ProfilePath("transformer4"), "--budget",
                                "1.3GiB", "--engine", "cbc", "--gap", "0.5"});
  EXPECT_LE(plan["gap"], 0.5);
  EXPECT_THAT(plan["status"], AnyOf("optimal", "feasible"));
}

TEST_F(InterruptTest, ProgressIsLoggedOnRequestOnly) {
  EXPECT_THAT(Acplan(LongSearch({"--time-limit", "4", "-v"})).err,
              HasSubstr("labels or nodes"));
  EXPECT_EQ(Acplan(LongSearch({"--time-limit", "4"})).err, "");
}

TEST_F(InterruptTest, ProgressIsShownOnATerminal) {
  const std::vector<std::string> search =
      LongSearch({"--time-limit", "4", "--json"});
  const Outcome outcome = Acplan(search, {.err = Stream::kTerminal});
  EXPECT_THAT(outcome.out, HasSubstr("\r\033[Kbest "));
  EXPECT_THAT(outcome.out, HasSubstr("\r\033[K{"));  // cleared in the end
  std::vector<std::string> quiet = search;
  quiet.emplace_back("-q");
  EXPECT_EQ(Acplan(quiet, {.err = Stream::kTerminal}).out.front(), '{');
}

}  // namespace

}  // namespace acplan::cli
