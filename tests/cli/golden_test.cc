#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

// The tables of one small profile, byte for byte, with the effort of the search
// masked. After an intended change, write the files anew and read the
// difference:
//   ACPLAN_UPDATE_GOLDENS=1 ctest --preset release -R GoldenTest
//   git diff tests/cli/golden
class GoldenTest : public CliTest {
 protected:
  GoldenTest() {
    std::filesystem::copy_file(ProfilePath("transformer4"),
                               folder() / "transformer4.json.gz");
  }

  void Expect(const std::string& name,
              const std::vector<std::string>& arguments) const {
    const std::string out = std::regex_replace(
        AcplanOut(arguments), std::regex("[0-9]+\\.[0-9]{3} s, [0-9,]+ labels"),
        "<seconds> s, <n> labels");
    const std::filesystem::path path =
        std::filesystem::path(ACPLAN_GOLDEN_DIR) / (name + ".txt");
    if (std::getenv("ACPLAN_UPDATE_GOLDENS")) {
      graph::PutBytes(path, out);
      return;
    }
    std::ostringstream golden;
    golden << std::ifstream(path, std::ios::binary).rdbuf();
    EXPECT_EQ(out, golden.str()) << path;
  }
};

TEST_F(GoldenTest, Plan) {
  Expect("plan", {"plan", "transformer4.json.gz", "--budget", "1.6GiB"});
}

TEST_F(GoldenTest, PlanWithOptions) {
  Expect("plan_with_options",
         {"plan", "transformer4.json.gz", "--budget", "1.6GiB", "--reserve",
          "64MiB", "--memory-model", "torch", "--world-size", "4",
          "--max-units", "3"});
}

TEST_F(GoldenTest, PlanOfModules) {
  Expect("plan_of_modules", {"plan", "transformer4.json.gz", "--budget", "75%",
                             "--tradeoff", "profile"});
}

TEST_F(GoldenTest, PlanWithPatterns) {
  Expect("plan_with_patterns",
         {"plan", "transformer4.json.gz", "--budget", "min", "--save",
          "mm|_scaled*", "--recompute", "gelu", "--all"});
}

TEST_F(GoldenTest, Frontier) {
  Expect("frontier", {"frontier", "transformer4.json.gz", "--points", "8"});
}

TEST_F(GoldenTest, FrontierWithOptions) {
  Expect("frontier_with_options",
         {"frontier", "transformer4.json.gz", "--budgets", "1GiB,min,75%,3GiB",
          "--reserve", "64MiB", "--memory-model", "torch", "--world-size", "4",
          "--tradeoff", "fit", "--max-units", "3"});
}

TEST_F(GoldenTest, Ops) {
  Expect("ops", {"module", "policy", "transformer4.json.gz",
                 "Transformer.layers.0", "--memory-budget", "0.4", "--save",
                 "mm", "--recompute", "native_l*|gelu"});
}

TEST_F(GoldenTest, PlanWithoutUnits) {
  Expect("plan_without_units",
         {"plan", "transformer4.json.gz", "--budget", "4GiB"});
}

TEST_F(GoldenTest, Compare) {
  for (const std::string budget : {"2GiB", "1.3GiB"}) {
    AcplanOut({"plan", "transformer4.json.gz", "--budget", budget, "-o",
               budget + ".json"});
  }
  Expect("compare",
         {"show", "transformer4.json.gz", "2GiB.json", "1.3GiB.json"});
}

TEST_F(GoldenTest, Check) {
  AcplanOut({"plan", "transformer4.json.gz", "--budget", "1.6GiB", "-o",
             "plan.json"});
  Expect("check",
         {"check", "transformer4.json.gz", "plan.json", "--budget", "1.7GiB"});
}

TEST_F(GoldenTest, Baseline) {
  Expect("baseline", {"show", "transformer4.json.gz", "--world-size", "4"});
}

TEST_F(GoldenTest, Curve) {
  Expect("curve",
         {"module", "curve", "transformer4.json.gz", "Transformer.layers.0"});
}

TEST_F(GoldenTest, CurveWithOptions) {
  Expect("curve_with_options",
         {"module", "curve", "transformer4.json.gz", "Transformer.layers.0",
          "--segments", "3", "--save", "addmm|gelu", "--save", "add",
          "--recompute", "native_l*"});
}

TEST_F(GoldenTest, CurveAsCsv) {
  Expect("curve_csv", {"module", "curve", "transformer4.json.gz",
                       "Transformer.layers.0.feed_forward", "--csv"});
}

TEST_F(GoldenTest, Profile) {
  Expect("profile", {"profile", ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz"});
}

TEST_F(GoldenTest, Dataflow) {
  Expect("dataflow",
         {"module", "dataflow", ACPLAN_DATA_DIR "/dataflow/gpt2_tiny.json.gz"});
}

TEST_F(GoldenTest, Tree) {
  Expect("tree", {"show", "--modules", "transformer4.json.gz"});
}

}  // namespace

}  // namespace acplan::cli
