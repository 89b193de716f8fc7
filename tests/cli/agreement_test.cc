#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "tests/cli/cli_test.h"
#include "tests/support/instances.h"
#include "tests/support/random_step.h"
#include "tests/support/synthetic_profile.h"

// Commands agree on one random step or profile and on one plan for it. Each
// question is asked of the program, in a process of its own; instances.h says
// how to go through more than CI does.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kUsual = 40;

class AgreementTest : public CliTest {
 protected:
  // Writes the step or profile that the questions are about.
  void PutStep(int seed, std::mt19937& random) const {
    const auto half = [&] { return random() % 2 == 0; };
    std::mt19937 of_step(static_cast<unsigned>(seed));
    PutFile("input.json", graph::ToJson(test_support::RandomStep(
                              of_step, {.blocks_most = 3,
                                        .operators_most = 3,
                                        .nests = half(),
                                        .skips = half(),
                                        .shares_arguments = half(),
                                        .shares_storages = half(),
                                        .shares_modules = half(),
                                        .repeats = half(),
                                        .writes = half(),
                                        .draws = half(),
                                        .has_odd_ends = half()})));
  }
  void PutProfile(int seed) const {
    PutFile("input.json",
            graph::ProfileToJson(test_support::RandomProfile(
                static_cast<unsigned>(seed), {.most_operators = 6})));
  }

  Outcome Ask(const std::vector<std::string>& words,
              const std::vector<std::string>& flags) const {
    std::vector<std::string> arguments = words;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Acplan(arguments);
  }

  void ExpectAgreement(bool is_trace, const std::vector<std::string>& flags);
  void ExpectTheSamePlan(const json& plan, bool is_trace) const;
  void ExpectLeast(const std::vector<std::string>& flags) const;
};

// Expects that commands agree on the plan in plan.json, which fits its budget.
void AgreementTest::ExpectTheSamePlan(const json& plan, bool is_trace) const {
  const int64_t peak = plan["peak_bytes"];
  const int64_t budget = plan["budget_bytes"];
  const std::string peak_text = graph::FormatBytes(peak);
  const std::string recomputed = FormatMs(plan["recompute_ms"]);
  const auto check = [&](int64_t bytes) {
    return Acplan({"check", "input.json", "plan.json", "--budget",
                   std::to_string(bytes)});
  };
  const Outcome holds = check(budget);
  EXPECT_EQ(holds.exit_code, 0) << holds.err;
  EXPECT_THAT(holds.out, HasSubstr("holds: "));
  EXPECT_THAT(holds.out, HasSubstr("peak " + peak_text));
  EXPECT_THAT(holds.out, HasSubstr("recomputes " + recomputed));
  EXPECT_EQ(check(std::max<int64_t>(peak, 1)).exit_code, 0);
  if (peak > 1) {
    EXPECT_EQ(check(peak - 1).exit_code, 1);
  }

  const Outcome compared = Acplan({"show", "input.json", "plan.json"});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr(peak_text));
  EXPECT_THAT(compared.out, HasSubstr(recomputed));
  EXPECT_THAT(compared.out, HasSubstr("yes"));

  if (!is_trace) return;
  const json simulated = AcplanJson({"simulate", "input.json", "plan.json"});
  EXPECT_EQ(simulated["planned"]["peak_bytes"], peak);
  EXPECT_NEAR(simulated["planned"]["recompute_ms"].get<double>(),
              plan["recompute_ms"].get<double>(), 1e-9);
  EXPECT_EQ(simulated["units"], plan["modules"].size());
  EXPECT_EQ(simulated["baseline"]["peak_bytes"],
            plan["baseline"]["peak_bytes"]);
}

// The least budget has a plan; if it is proven, a byte less has none.
void AgreementTest::ExpectLeast(const std::vector<std::string>& flags) const {
  const Outcome least =
      Ask({"plan", "input.json", "--budget", "min", "--json"}, flags);
  ASSERT_EQ(least.exit_code, 0) << least.err;
  const int64_t bytes = json::parse(least.out)["budget_bytes"];
  if (!least.err.empty() || bytes <= 1) return;  // a limit was hit
  const Outcome below = Ask(
      {"plan", "input.json", "--budget", std::to_string(bytes - 1), "--json"},
      flags);
  EXPECT_EQ(below.exit_code, 3) << bytes;
  EXPECT_EQ(json::parse(below.out)["minimum_budget_bytes"], bytes);
}

void AgreementTest::ExpectAgreement(bool is_trace,
                                    const std::vector<std::string>& flags) {
  std::vector<std::string> question = {"plan", "input.json", "--budget", "70%",
                                       "-o",   "plan.json",  "--json"};
  const Outcome outcome = Ask(question, flags);
  ASSERT_THAT(outcome.exit_code, testing::AnyOf(0, 2, 3, 4)) << outcome.err;
  if (outcome.exit_code == 2) return;  // nothing may be a unit
  EXPECT_EQ(Read("plan.json"), outcome.out);
  json plan = json::parse(outcome.out);
  if (plan["status"] == "infeasible" && plan.contains("minimum_budget_bytes")) {
    question[3] = std::to_string(plan["minimum_budget_bytes"].get<int64_t>());
    const Outcome at_least = Ask(question, flags);
    ASSERT_EQ(at_least.exit_code, 0) << at_least.err;
    plan = json::parse(at_least.out);
  }
  if (!plan.contains("peak_bytes")) return;  // a limit was hit
  ExpectTheSamePlan(plan, is_trace);
  const Outcome frontier =
      Ask({"frontier", "input.json", "--budgets",
           std::to_string(plan["budget_bytes"].get<int64_t>()), "--json"},
          flags);
  ASSERT_EQ(frontier.exit_code, 0) << frontier.err;
  const json other = json::parse(frontier.out)["plans"][0];
  if (plan["status"] == "optimal" && other["status"] == "optimal") {
    EXPECT_NEAR(other["recompute_ms"].get<double>(),
                plan["recompute_ms"].get<double>(), 1e-7);
  }
  ExpectLeast(flags);
}

TEST_F(AgreementTest, OfPlansOnSteps) {
  for (int k = test_support::First();
       k < test_support::End(kUsual) && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    std::mt19937 random(static_cast<unsigned>(k));
    PutStep(k, random);
    std::vector<std::string> flags = {"--time-limit", "2"};
    if (random() % 2 == 0) {
      flags.insert(flags.end(), {"--decisions", "save,recompute"});
    }
    ExpectAgreement(/*is_trace=*/true, flags);
  }
}

TEST_F(AgreementTest, OfPlansOnProfiles) {
  for (int k = test_support::First();
       k < test_support::End(kUsual) && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    std::mt19937 random(static_cast<unsigned>(k));
    PutProfile(k);
    std::vector<std::string> flags = {"--time-limit", "2"};
    if (random() % 2 == 0) {
      flags.insert(flags.end(), {"--granularity", "module"});
    }
    ExpectAgreement(/*is_trace=*/false, flags);
  }
}

}  // namespace
}  // namespace acplan::cli
