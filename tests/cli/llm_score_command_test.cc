#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kRuns = ACPLAN_DATA_DIR "/training/runs.csv";

using LlmScoreTest = CliTest;

TEST_F(LlmScoreTest, PrintsEachSourceAndTheAverage) {
  const std::string text = AcplanOut({"train", "score", kRuns});
  EXPECT_THAT(text, HasSubstr("korthikanti"));
  EXPECT_THAT(text, HasSubstr("22 of 22"));
  EXPECT_THAT(text, HasSubstr("average of 3 sources: mean "));
  EXPECT_EQ(text.find("not represented"), std::string::npos);
}

// JSON, the file of predictions and the text have the same numbers.
TEST_F(LlmScoreTest, JsonHoldsWhatThePredictionsHold) {
  const json score = json::parse(
      AcplanOut({"train", "score", kRuns, "--json", "-o", "p.csv"}));
  const graph::CsvTable table =
      graph::ParseCsv(graph::ReadFile(folder() / "p.csv"), "p.csv");
  ASSERT_EQ(score["runs"].size(), 40U);
  ASSERT_EQ(score["families"].size(), 2U);
  EXPECT_EQ(score["families"][0]["name"], "dense");
  EXPECT_EQ(score["families"][1]["name"], "experts");
  EXPECT_EQ(score["families"][0]["rows"].get<int>() +
                score["families"][1]["rows"].get<int>(),
            score["all"]["rows"].get<int>());
  ASSERT_EQ(table.rows.size(), 40U);
  for (size_t i = 0; i < 40; ++i) {
    const graph::CsvRow row(table, i);
    const json& run = score["runs"][i];
    EXPECT_EQ(run["id"], row.Text("id"));
    const double seconds = run["time_s"];
    EXPECT_NEAR(seconds, row.Positive("time_s"), 1e-5 * seconds);
    const json& parts = run["parts_s"];
    double sum = 0;
    for (const auto& [name, part] : parts.items()) {
      if (name != "recompute") sum += part.get<double>();
    }
    EXPECT_NEAR(sum, seconds, 1e-9 * seconds);
  }
}

TEST_F(LlmScoreTest, OtherModelsStandBesideOnTheSameRows) {
  const graph::CsvTable table = graph::ParseCsv(graph::ReadFile(kRuns), kRuns);
  std::string csv = "id,time_s,exact,nothing\n";
  for (size_t i = 0; i < 3; ++i) {
    const graph::CsvRow row(table, i);
    csv += row.Text("id") + "," + row.Text("time_s") + "," +
           row.Text("time_s") + ",\n";
  }
  graph::WriteFile(folder() / "b.csv", csv);
  const std::string text =
      AcplanOut({"train", "score", kRuns, "--baselines", "b.csv"});
  EXPECT_THAT(text, HasSubstr("exact"));
  EXPECT_EQ(text.find("nothing"), std::string::npos);
}

TEST_F(LlmScoreTest, SaysWhatEachPartPaysAndWhatCalibrationLeaves) {
  const std::string text =
      AcplanOut({"train", "score", kRuns, "--ablate", "--calibrations"});
  EXPECT_THAT(text, HasSubstr("Calibrated by so many runs"));
  EXPECT_THAT(text, HasSubstr("(complete model)"));
  EXPECT_THAT(text, HasSubstr("waves and efficiency of tiles"));
  ExpectRefused(Acplan({"train", "score",
                        ACPLAN_DATA_DIR "/training/memory.csv.gz", "--ablate"}),
                {"--ablate: cannot be combined with readings of memory"});
}

TEST_F(LlmScoreTest, ScoresIntervalsOnOtherSources) {
  const std::string errors = ACPLAN_DATA_DIR "/training/errors.csv";
  EXPECT_THAT(AcplanOut({"train", "score", errors}),
              HasSubstr("intervals of other sources"));
  const json kinds = AcplanJson({"train", "score", errors, "--json"})["kinds"];
  EXPECT_EQ(kinds[0]["name"], "all");
  EXPECT_THAT(AcplanOut({"train", "score", kRuns, "--error-table", "e.csv"}),
              HasSubstr("intervals of 80%"));
  EXPECT_EQ(
      AcplanJson({"train", "score", "e.csv", "--json"})["kinds"][0]["runs"],
      40);
  ExpectRefused(Acplan({"train", "score", errors, "--ablate"}),
                {"--ablate: cannot be combined with a table of errors"});
}

TEST_F(LlmScoreTest, CalibratesByRunsOfOnesOwn) {
  EXPECT_THAT(AcplanOut({"train", "score", kRuns, "--calibrate", kRuns}),
              HasSubstr("calibrated by 40 runs"));
  const std::string model =
      ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";
  const json report =
      AcplanJson({"train", "show", model, "--gpu", "a100", "--gpus", "8",
                  "--tp", "8", "--calibrate", kRuns, "--json"});
  EXPECT_EQ(report["calibration"]["runs"], 40);
}

TEST_F(LlmScoreTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "score"}), {"RUNS"});
  ExpectRefused(Acplan({"train", "score", "nope.csv"}), {"nope.csv"});
  ExpectRefused(Acplan({"train", "score", kRuns, "--systems", "nope.json"}),
                {"nope.json"});
  ExpectRefused(Acplan({"train", "score", kRuns, "-o", "no/p.csv"}),
                {"no/p.csv"});
  ExpectRefused(Acplan({"train", "score", kRuns, "--baselines", "nope.csv",
                        "-o", "p.csv"}),
                {"nope.csv"});
  EXPECT_FALSE(Exists("p.csv"));
  graph::WriteFile(folder() / "r.csv", "id,source,time_s\nx,s,1\n");
  ExpectRefused(
      Acplan({"train", "score", "r.csv", "-o", "r.csv"}),
      {"--output: expected a file other than the input, found \"r.csv\""});
  graph::WriteFile(folder() / "a.csv", "id,source\nx,s\n");
  ExpectRefused(Acplan({"train", "score", "a.csv"}),
                {"a.csv: line 2: time_s: expected a number above 0"});
  graph::WriteFile(folder() / "b.csv", "id,source,time_s\nx,s\n");
  ExpectRefused(Acplan({"train", "score", "b.csv"}),
                {"line 2: expected 3 cells"});
  graph::WriteFile(folder() / "c.csv", "id,source,time_s\nx,s,1\n");
  EXPECT_THAT(AcplanOut({"train", "score", "c.csv"}),
              HasSubstr("not represented: x: c.csv: line 2: layers"));
}

}  // namespace

}  // namespace acplan::cli
