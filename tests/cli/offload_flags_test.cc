#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

// Plans that offload, through the commands that make and read them.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kOffloadTrace[] = ACPLAN_DATA_DIR "/traces/vit_base.json.gz";

class OffloadFlagsTest : public CliTest {
 protected:
  // Returns a plan within 70%, with some flags.
  json PlanWith(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {"plan", kOffloadTrace, "--budget",
                                        "70%",  "-o",          "plan.json"};
    command.insert(command.end(), flags.begin(), flags.end());
    const Outcome outcome = Acplan(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(graph::ReadFile(folder() / "plan.json"));
  }
};

double CostOf(const json& plan) {
  const double stall_ms =
      plan.contains("offload") ? plan["offload"].value("stall_ms", 0.) : 0;
  return plan.at("recompute_ms").get<double>() + stall_ms;
}

TEST_F(OffloadFlagsTest, NoLinkMakesAPlanDearerAndAFastOneMakesItFree) {
  const double alone_ms = CostOf(PlanWith({}));
  ASSERT_GT(alone_ms, 0);
  double last_ms = alone_ms;
  for (const char* rate : {"1MB/s", "1GB/s", "25GB/s", "1000GB/s"}) {
    SCOPED_TRACE(rate);
    const json plan = PlanWith({"--offload", rate});
    EXPECT_LE(CostOf(plan), alone_ms);
    EXPECT_LE(plan.at("peak_bytes"), plan.at("budget_bytes"));
    last_ms = CostOf(plan);
  }
  EXPECT_EQ(last_ms, 0);
}

TEST_F(OffloadFlagsTest, TheHostHoldsNoMoreThanItMay) {
  const json free = PlanWith({"--offload", "1000GB/s"})["offload"];
  const int64_t most = free.at("host_bytes").get<int64_t>() / 2;
  ASSERT_GT(most, 0);
  const json limited = PlanWith({"--offload", "1000GB/s", "--host-memory",
                                 std::to_string(most) + "B"})["offload"];
  EXPECT_LE(limited.at("host_bytes"), most);
  EXPECT_EQ(limited.at("host_memory_bytes"), most);
}

TEST_F(OffloadFlagsTest, ALinkHasAName) {
  const auto rates = [this](const std::string& link) {
    const json offload = PlanWith({"--offload", link})["offload"];
    const double rate = offload.at("bytes_per_second");
    return std::pair(rate, offload.value("back_bytes_per_second", rate));
  };
  const auto each = [](double rate) { return std::pair(rate, rate); };
  EXPECT_EQ(rates("pcie4"), each(25.1e9));
  EXPECT_EQ(rates("gpu"), each(25.1e9));  // the trace's is an A100
  EXPECT_EQ(rates("a100/2"), each(12.55e9));
  EXPECT_EQ(rates("gh200"), std::pair(297e9, 375e9));
  EXPECT_EQ(rates("297GB/s,375GB/s"), std::pair(297e9, 375e9));
  EXPECT_THAT(Acplan({"plan", kOffloadTrace, "--budget", "70%", "--offload",
                      "297MB/s,375GB/s"})
                  .out,
              HasSubstr("0.297 GB/s to the host and 375 GB/s back"));
  const auto refuse = [&](const std::string& link,
                          const std::string& fragment) {
    ExpectRefused(Acplan({"plan", kOffloadTrace, "--budget", "70%", "--offload",
                          link, "-o", "plan.json"}),
                  {"--offload: ", fragment});
  };
  refuse("pcie-4", "did you mean pcie4?");
  refuse("pcie4/0", "'0'");
  refuse("25GB/s,", "expected");
  refuse("25", "expected");
  const std::string profile = ProfilePath("transformer4");
  ExpectRefused(
      Acplan({"plan", profile, "--budget", "70%", "--offload", "gpu"}),
      {"--offload: needs a plan on a trace"});
}

TEST_F(OffloadFlagsTest, EveryCommandSaysTheSameOfAPlan) {
  const json plan = PlanWith({"--offload", "1000GB/s,2000GB/s"});
  ASSERT_GT(plan.at("offload").at("host_bytes"), 0);
  const json simulated = json::parse(
      Acplan({"simulate", kOffloadTrace, "plan.json", "--json"}).out);
  EXPECT_EQ(simulated.at("planned").at("peak_bytes"), plan.at("peak_bytes"));
  EXPECT_EQ(simulated.at("planned").at("offload").at("host_bytes"),
            plan.at("offload").at("host_bytes"));
  EXPECT_EQ(Acplan({"check", kOffloadTrace, "plan.json", "--budget", "70%"})
                .exit_code,
            0);
  EXPECT_EQ(Acplan({"check", kOffloadTrace, "plan.json", "--budget", "50%"})
                .exit_code,
            1);
  EXPECT_THAT(Acplan({"show", kOffloadTrace, "plan.json"}).out,
              HasSubstr("plan.json"));
}

}  // namespace
}  // namespace acplan::cli
