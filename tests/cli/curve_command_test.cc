#include <fmt/format.h>

#include <cmath>
#include <map>
#include <sstream>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kCurveLayer[] = "Transformer.layers.0";

class CurveCommandTest : public CliTest {
 protected:
  std::vector<std::string> Curve(
      const std::vector<std::string>& more = {},
      const std::string& module = kCurveLayer) const {
    std::vector<std::string> arguments{"module", "curve", profile_, module};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  const std::string profile_ = ProfilePath("transformer4");
};

// Returns the rows of a CSV by column, with numbers as text.
std::vector<std::map<std::string, std::string>> CurveRows(
    const std::string& csv) {
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> heading;
  for (const std::string& line : Lines(csv)) {
    std::vector<std::string> cells{""};
    for (const char c : line) {
      if (c == ',') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    if (heading.empty()) {
      heading = cells;
      continue;
    }
    EXPECT_EQ(cells.size(), heading.size()) << line;
    auto& row = rows.emplace_back();
    for (size_t c = 0; c < cells.size(); ++c) row[heading[c]] = cells[c];
  }
  return rows;
}

const json& Layer() {
  for (const json& module : SmallProfile()["modules"]) {
    if (module["fqn"] == kCurveLayer) return module;
  }
  throw std::logic_error("no such module");
}

TEST_F(CurveCommandTest, JsonAgreesWithTheProfile) {
  const json curve = AcplanJson(Curve());
  const json& torch = Layer()["torch_fit"];
  EXPECT_EQ(curve["module"], kCurveLayer);
  EXPECT_EQ(curve["operators"], Layer()["sac"]["memory"].size());
  EXPECT_EQ(curve["sac_memory"], torch["sac_memory"]);
  EXPECT_NEAR(curve["sac_runtime"], torch["sac_runtime"], 1e-9);
  ASSERT_EQ(curve["torch_fit"]["segments"].size(), torch["n_segments"]);
  for (size_t k = 0; k < torch["slopes"].size(); ++k) {
    const json& segment = curve["torch_fit"]["segments"][k];
    EXPECT_EQ(segment["slope"], torch["slopes"][k]);
    EXPECT_EQ(segment["intercept"], torch["intercepts"][k]);
    EXPECT_EQ(segment["from"], torch["breakpoints"][k]);
    EXPECT_EQ(segment["to"], torch["breakpoints"][k + 1]);
  }
  EXPECT_THAT(curve["fit"]["segments"], SizeIs(2));
  EXPECT_GT(curve["fit"]["squared_error"], 0);
  const double size = curve["sac_memory"];
  for (const std::string kind : {"greedy", "pareto"}) {
    for (const json& point : curve[kind]) {
      const double saved = point["saved_bytes"];
      EXPECT_NEAR(point["memory_budget"], saved / size, 1e-12);
      EXPECT_EQ(point["discarded_bytes"],
                std::max(std::min(curve["act_fw_per_module"].get<int64_t>(),
                                  curve["sac_memory"].get<int64_t>()) -
                             point["saved_bytes"].get<int64_t>(),
                         int64_t{0}));
      EXPECT_NEAR(point["recomputed_share"],
                  point["recompute_ms"].get<double>() /
                      curve["sac_runtime"].get<double>(),
                  1e-12);
    }
  }
}

TEST_F(CurveCommandTest, ThePrefixesAreNeverBetterThanTheList) {
  const json curve = AcplanJson(Curve());
  EXPECT_EQ(curve["pareto_is_complete"], true);
  int corners = 0;
  for (size_t k = 0; k < curve["pareto"].size(); ++k) {
    const json& point = curve["pareto"][k];
    corners += point["on_hull"].get<bool>() ? 1 : 0;
    if (k == 0) continue;
    EXPECT_GT(point["saved_bytes"], curve["pareto"][k - 1]["saved_bytes"]);
    EXPECT_LT(point["recompute_ms"], curve["pareto"][k - 1]["recompute_ms"]);
  }
  EXPECT_GT(corners, 2);
  EXPECT_LT(corners, static_cast<int>(curve["pareto"].size()));
  for (const json& prefix : curve["greedy"]) {
    double least = INFINITY;
    for (const json& point : curve["pareto"]) {
      if (point["saved_bytes"] <= prefix["saved_bytes"]) {
        least = point["recompute_ms"];
      }
    }
    EXPECT_LE(least, prefix["recompute_ms"].get<double>() + 1e-9);
  }
}

TEST_F(CurveCommandTest, CsvHasTheNumbersOfTheJson) {
  const json curve = AcplanJson(Curve({"--segments", "3"}));
  std::map<std::string, size_t> counts;
  for (const auto& row :
       CurveRows(AcplanOut(Curve({"--segments", "3", "--csv"})))) {
    const std::string& kind = row.at("kind");
    const bool is_fit = kind == "fit" || kind == "torch_fit";
    const json& points = is_fit ? curve[kind]["segments"] : curve[kind];
    ASSERT_LT(counts[kind], points.size());
    const json& point = points[counts[kind]++];
    for (const auto& [name, text] : row) {
      if (name == "kind") continue;
      if (!point.contains(name)) {
        EXPECT_EQ(text, "");
      } else if (name == "on_hull") {
        EXPECT_EQ(text, point[name].get<bool>() ? "1" : "0");
      } else {
        EXPECT_EQ(std::stod(text), point[name].get<double>()) << name;
      }
    }
  }
  EXPECT_EQ(counts["greedy"], curve["greedy"].size());
  EXPECT_EQ(counts["pareto"], curve["pareto"].size());
  EXPECT_EQ(counts["fit"], 3);
  EXPECT_EQ(counts["torch_fit"], 2);
}

TEST_F(CurveCommandTest, FilesAreWhatIsPrinted) {
  const std::string json_text = AcplanOut(Curve({"--json"}));
  const std::string csv = AcplanOut(Curve({"--csv"}));
  const std::string table = AcplanOut(Curve({"-o", "curve.json"}));
  EXPECT_EQ(table, AcplanOut(Curve()));
  EXPECT_EQ(Read("curve.json"), json_text);
  EXPECT_EQ(AcplanOut(Curve({"-o", "curve.csv"})), table);
  EXPECT_EQ(Read("curve.csv"), csv);
  AcplanOut(Curve({"-o", "curve.csv.gz"}));
  EXPECT_EQ(graph::ReadFile(folder() / "curve.csv.gz"), csv);
  EXPECT_EQ(AcplanOut(Curve({"-o", "curve.txt", "--csv"})), csv);
  EXPECT_EQ(Read("curve.txt"), csv);
  EXPECT_EQ(AcplanOut(Curve({"-o", "odd.csv", "--json"})), json_text);
  EXPECT_EQ(Read("odd.csv"), json_text);
}

TEST_F(CurveCommandTest, PatternsNarrowTheListOnly) {
  const json free = AcplanJson(Curve());
  const json bound =
      AcplanJson(Curve({"--save", "addmm|gelu", "--recompute", "native_l*"}));
  EXPECT_EQ(bound["save"], json({"addmm", "gelu"}));
  EXPECT_EQ(bound["recompute"], json({"native_l*"}));
  EXPECT_EQ(bound["greedy"], free["greedy"]);
  EXPECT_EQ(bound["fit"], free["fit"]);
  EXPECT_EQ(free["pareto"].front()["saved_bytes"], 0);
  int64_t saved = 0;
  double recomputed = 0;
  const json& sac = Layer()["sac"];
  for (size_t op = 0; op < sac["memory"].size(); ++op) {
    const std::string name = sac["func_names"][op];
    if (name == "addmm" || name == "gelu") {
      saved += sac["memory"][op].get<int64_t>();
    }
    if (name.starts_with("native_l"))
      recomputed += sac["runtimes"][op].get<double>();
  }
  EXPECT_GT(saved, 0);
  EXPECT_GT(recomputed, 0);
  EXPECT_EQ(bound["pareto"].front()["saved_bytes"], saved);
  EXPECT_GE(bound["pareto"].back()["recompute_ms"], recomputed * (1 - 1e-12));
  EXPECT_LT(bound["pareto"].size(), free["pareto"].size());
}

TEST_F(CurveCommandTest, MoreSegmentsFitBetter) {
  double last = INFINITY;
  for (int segments = 1; segments <= 6; ++segments) {
    const json curve =
        AcplanJson(Curve({"--segments", std::to_string(segments)}));
    EXPECT_THAT(curve["fit"]["segments"], SizeIs(segments));
    EXPECT_LT(curve["fit"]["squared_error"], last);
    last = curve["fit"]["squared_error"];
  }
}

TEST_F(CurveCommandTest, LongListsAreShortened) {
  const json whole = AcplanJson(Curve({}, "Transformer"));
  const std::string out = AcplanOut(Curve({}, "Transformer"));
  const size_t count = whole["pareto"].size();
  ASSERT_GT(count, 100);
  EXPECT_THAT(out, HasSubstr(fmt::format(" of {} points: ", count)));
  EXPECT_THAT(out, HasSubstr("--csv lists all\n"));
  EXPECT_LT(Lines(out).size(), 65);
  EXPECT_THAT(AcplanOut(Curve()),
              AllOf(StartsWith(kCurveLayer), HasSubstr("exact Pareto list")));
}

TEST_F(CurveCommandTest, ListsThatAreTooLongHaveCorners) {
  const std::string gpt2 = ProfilePath("gpt2_small");
  const json curve = AcplanJson({"module", "curve", gpt2, "GPT2LMHeadModel"});
  EXPECT_EQ(curve["pareto_is_complete"], false);
  EXPECT_THAT(curve["pareto"], Not(IsEmpty()));
  for (const json& point : curve["pareto"]) EXPECT_EQ(point["on_hull"], true);
  EXPECT_THAT(AcplanOut({"module", "curve", gpt2, "GPT2LMHeadModel"}),
              AllOf(HasSubstr("convex hull of the exact Pareto list"),
                    HasSubstr("the Pareto list is too long")));
}

TEST_F(CurveCommandTest, ModulesWithNothingToFit) {
  PutFile("profile.json",
          Edited(SmallProfile(),
                 {{"/modules/4/torch_fit", "null"},
                  {"/modules/4/sac",
                   R"({"func_names": ["mm"], "runtimes": [0.5], "memory": [0],
                   "view_like_ops": [], "rand_ops": [],
                   "saved_autograd_ops": [], "inplace_ops": [],
                   "force_store_random": false})"}}));
  const json curve =
      AcplanJson({"module", "curve", "profile.json", kCurveLayer});
  EXPECT_EQ(curve["sac_memory"], 0);
  EXPECT_EQ(curve["torch_fit"], nullptr);
  EXPECT_THAT(curve["pareto"], SizeIs(1));
  EXPECT_EQ(curve["pareto"][0]["memory_budget"], 0);
  EXPECT_EQ(curve["fit"]["segments"][0]["slope"], 1);
  EXPECT_THAT(AcplanOut({"module", "curve", "profile.json", kCurveLayer}),
              Not(HasSubstr("nan")));
}

}  // namespace

}  // namespace acplan::cli
