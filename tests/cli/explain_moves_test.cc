#include <gmock/gmock.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/json_scan.h"
#include "graph/trace/operator_kinds.h"
#include "tests/cli/cli_test.h"

// The lines of `acplan explain` about moving the inputs of blocks.

namespace acplan::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTinyGpt2[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

class ExplainMovesTest : public CliTest {
 protected:
  std::vector<std::string> Command(const std::string& trace,
                                   const std::string& link) const {
    std::vector<std::string> command = {"explain", trace, "--time-limit",
                                        "0.1"};
    if (!link.empty()) command.insert(command.end(), {"--offload", link});
    return command;
  }

  json MovesOf(const std::string& trace, const std::string& link) const {
    return AcplanJson(Command(trace, link)).value("moves", json());
  }
};

TEST_F(ExplainMovesTest, HasTheLinkOfTheDeviceOrOfTheFlag) {
  const json moves = MovesOf(kTinyGpt2, "");
  EXPECT_EQ(moves["bytes_per_second"], 25.1e9);  // an A100's
  EXPECT_EQ(moves["class"], "GPT2Block");
  EXPECT_EQ(moves["blocks"], 4);
  const double bytes = moves["input_bytes"];
  EXPECT_NEAR(moves["send_ms"], bytes / 25.1e9 * 1e3, 1e-9);
  const json fast = MovesOf(kTinyGpt2, "gh200");
  EXPECT_EQ(fast["input_bytes"], bytes);
  EXPECT_NEAR(fast["send_ms"], bytes / 297e9 * 1e3, 1e-9);
  EXPECT_NEAR(fast["fetch_ms"], bytes / 375e9 * 1e3, 1e-9);
  // A link that nothing waits for.
  const json free = MovesOf(kTinyGpt2, "1000000GB/s");
  EXPECT_NEAR(free["stall_ms"], 0, 1e-6);
  EXPECT_EQ(free["hidden_from"], 0);
}

// With a sequence as long as the command says, attention takes as many times the square,
// all else takes as many times more, and a copy then takes as long as a forward pass.
TEST_F(ExplainMovesTest, CopiesAreHiddenFromTheLengthOn) {
  const json own = MovesOf(kTinyGpt2, "");
  ASSERT_GT(own["attention_ms"], 0);
  // A copy takes as long as attention twice as long and all else.
  const double copy_ms =
      own["forward_ms"].get<double>() + own["attention_ms"].get<double>();
  const double rate = own["input_bytes"].get<double>() / copy_ms * 1e3;
  const auto at = [](double bytes) {
    return std::to_string(static_cast<int64_t>(bytes)) + "B/s";
  };
  const json moves = MovesOf(kTinyGpt2, at(rate));
  const double longer = moves["hidden_from"];
  EXPECT_NEAR(longer, 2, 1e-3);
  EXPECT_LT(moves["factor"], 1);
  json trace = json::parse(graph::ReadJsonText(kTinyGpt2));
  for (json& op : trace["operators"]) {
    const bool is_attention = graph::KindOf(op["name"].get<std::string>()) ==
                              graph::OperatorKind::kAttention;
    op["runtime_ms"] =
        op["runtime_ms"].get<double>() * longer * (is_attention ? longer : 1);
  }
  graph::WriteFile(folder() / "long.json", trace.dump());
  // The bytes are as many times more on a link that is as many times slower.
  const json scaled = MovesOf("long.json", at(rate / longer));
  EXPECT_NEAR(scaled["factor"], 1, 1e-3);
}

TEST_F(ExplainMovesTest, TellsWhy) {
  EXPECT_THAT(AcplanOut(Command(kTinyGpt2, "gpu")),
              AllOf(HasSubstr("\nmoving the inputs of blocks to the host "
                              "(--offload) at 25.1 GB/s each way:\n4 calls of "
                              "GPT2Block have 256.00 KiB\na copy takes "),
                    HasSubstr("so copies are hidden, and moving them costs "
                              "nothing\n")));
  EXPECT_THAT(AcplanOut(Command(kTinyGpt2, "10MB/s")),
              AllOf(HasSubstr("so copies are not hidden, and the step waits "),
                    HasSubstr("copies are hidden from "),
                    HasSubstr(" times this sequence on\n")));
  ExpectRefused(Acplan(Command(kTinyGpt2, "pcie")), {"--offload: "});
}

}  // namespace
}  // namespace acplan::cli
