#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kProfiledTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

class ProfileCommandTest : public CliTest {};

TEST_F(ProfileCommandTest, WritesTheProfileOfATrace) {
  for (const std::string name : {"p.json", "p.json.gz"}) {
    const std::string text = AcplanOut({"profile", kProfiledTrace, "-o", name});
    EXPECT_THAT(text, HasSubstr("55 modules"));
    EXPECT_EQ(graph::ReadProfile(folder() / name),
              graph::Aggregate(graph::ReadTrace(kProfiledTrace)));
  }
  EXPECT_EQ(AcplanOut({"profile", kProfiledTrace, "--json"}), Read("p.json"));
}

TEST_F(ProfileCommandTest, PlansOnProfilesAreWhatTheTraceRuns) {
  AcplanOut({"profile", kProfiledTrace, "-o", "p.json"});
  const json baseline = AcplanJson({"show", "p.json"});
  const json traced = AcplanJson({"simulate", kProfiledTrace});
  EXPECT_EQ(baseline["peak_bytes"], traced["baseline"]["peak_bytes"]);
  for (const std::string granularity : {"operator", "module"}) {
    const json plan =
        AcplanJson({"plan", "p.json", "--budget", "99%", "--granularity",
                    granularity, "-o", granularity + ".json"});
    EXPECT_EQ(plan["status"], "optimal");
    EXPECT_EQ(plan["memory_model"], "snapshot");
    EXPECT_FALSE(plan["modules"].empty());
  }
  const json plan = json::parse(Read("operator.json"));
  const json simulated =
      AcplanJson({"simulate", kProfiledTrace, "operator.json"})["planned"];
  EXPECT_LE(simulated["peak_bytes"], plan["budget_bytes"]);
  EXPECT_NEAR(simulated["recompute_ms"].get<double>(),
              plan["recompute_ms"].get<double>(), 1e-9);
}

TEST_F(ProfileCommandTest, ATraceMustSayWhenBackwardRuns) {
  json trace = json::parse(graph::ReadFile(kProfiledTrace));
  for (json& call : trace["calls"]) {
    call.erase("backward_start");
    call.erase("backward_end");
  }
  PutFile("old.json", trace.dump());
  AcplanOut({"simulate", "old.json"});
  ExpectRefused(Acplan({"profile", "old.json", "-o", "p.json"}),
                {"old.json: calls: expected backward_start"});
  EXPECT_FALSE(Exists("p.json"));
}

TEST_F(ProfileCommandTest, OtherFilesAreRefused) {
  ExpectRefused(Acplan({"profile", ProfilePath("transformer4")}),
                {"format: expected", "acplan.trace"});
  ExpectRefused(Acplan({"profile", "none.json"}), {"none.json"});
  ExpectRefused(Acplan({"profile", kProfiledTrace, "-o", kProfiledTrace}),
                {"--output"});
}

}  // namespace

}  // namespace acplan::cli
