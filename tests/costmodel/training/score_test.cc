#include "costmodel/training/score/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/training/score/memory_table.h"
#include "costmodel/training/score/run_table.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

const TrainingSystems& Systems() {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  return kSystems;
}

using Cells = std::map<std::string, std::string>;

// Returns Llama 3 8B on 8 H100.
Cells Example() {
  return {{"id", "x"},
          {"source", "s"},
          {"software", "NeMo 25.09"},
          {"family", "dense"},
          {"layers", "32"},
          {"hidden", "4096"},
          {"heads", "32"},
          {"kv_heads", "8"},
          {"head_dim", "128"},
          {"ffn", "14336"},
          {"vocab", "128256"},
          {"act", "swiglu"},
          {"norm", "rmsnorm"},
          {"tied", "False"},
          {"pos", "rope"},
          {"experts", ""},
          {"topk", ""},
          {"expert_ffn", ""},
          {"seq", "8192"},
          {"gbs", "64"},
          {"mbs", "1"},
          {"precision", "bf16"},
          {"grad_dtype", "fp32"},
          {"attention", "flash"},
          {"gpu", "H100-SXM5-80GB"},
          {"gpus", "8"},
          {"tp", "1"},
          {"sp", "0"},
          {"pp", "1"},
          {"vp", "1"},
          {"cp", "1"},
          {"ep", "1"},
          {"zero", "1"},
          {"fsdp", "0"},
          {"ac", "none"},
          {"time_s", "10"},
          {"pp_schedule", ""},
          {"mla_kv_rank", ""},
          {"mla_v", ""},
          {"nvlink_domain", "8"},
          {"internode_gbs_per_gpu", "50.0"}};
}

std::string Text(const Cells& cells) {
  std::string columns;
  std::string row;
  for (const auto& [column, cell] : cells) {
    columns += (columns.empty() ? "" : ",") + column;
    row += (row.empty() ? "" : ",") + graph::CsvCell(cell);
  }
  return columns + "\n" + row + "\n";
}

std::vector<Prediction> Predict(const Cells& cells) {
  return PredictRuns(
      ReadRuns(graph::ParseCsv(Text(cells), "runs.csv"), Systems()));
}

TEST(TrainingRuns, ExampleIsRepresented) {
  const std::vector<Prediction> predictions = Predict(Example());
  ASSERT_EQ(predictions.size(), 1u);
  EXPECT_EQ(predictions[0].reason, "");
  EXPECT_GT(predictions[0].seconds, 1);
  EXPECT_GT(predictions[0].memory_gib, 10);
}

struct WrongCell {
  std::string name;
  Cells cells;
  std::string complaint;
};

class WrongRuns : public ::testing::TestWithParam<WrongCell> {};

// A row that contradicts itself is not predicted, and a line says why.
TEST_P(WrongRuns, AreNotRepresentedForAReason) {
  Cells cells = Example();
  for (const auto& [column, cell] : GetParam().cells) cells[column] = cell;
  const std::vector<Prediction> predictions = Predict(cells);
  EXPECT_EQ(predictions[0].seconds, 0);
  EXPECT_THAT(predictions[0].reason, HasSubstr(GetParam().complaint));
  EXPECT_EQ(predictions[0].reason.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Cells, WrongRuns,
    ::testing::Values(
        WrongCell{"Layers", {{"layers", "0"}}, "layers: expected a whole"},
        WrongCell{"Hidden",
                  {{"hidden", ""}},
                  "hidden: expected a whole number "
                  "of at least 1, found nothing"},
        WrongCell{"Heads", {{"heads", "x"}}, "heads: expected"},
        WrongCell{"KvHeads", {{"kv_heads", "5"}}, "32 heads and 5 kv_heads"},
        WrongCell{"Activation", {{"act", "tanh"}}, "act: expected one of gelu"},
        WrongCell{"Tied", {{"tied", "maybe"}}, "tied: expected True or False"},
        WrongCell{"Precision",
                  {{"precision", "fp6"}},
                  "precision: expected one of bf16"},
        WrongCell{"PrecisionOfGpu",
                  {{"precision", "nvfp4"}},
                  "has no products in this precision; use bf16"},
        WrongCell{"Gpu", {{"gpu", "TPUv5"}}, "gpu: expected one of T4"},
        WrongCell{"Software",
                  {{"software", "Megatrn-LM"}},
                  R"((the nearest: Megatron-LM), found "Megatrn-LM")"},
        WrongCell{"Gpus", {{"gpus", "0"}}, "gpus: expected"},
        WrongCell{"Degrees",
                  {{"tp", "3"}},
                  "tp x pp x cp: expected a divisor "
                  "of 8 (gpus), found 3"},
        WrongCell{"Batch", {{"gbs", "63"}}, "dp: expected a divisor of 63"},
        WrongCell{"Microbatch", {{"mbs", "3"}}, "mbs: expected a divisor of 8"},
        WrongCell{"TensorHeads",
                  {{"heads", "4"}, {"kv_heads", "4"}, {"tp", "8"}},
                  "tp: expected a divisor of 4 (heads), found 8"},
        WrongCell{"Context",
                  {{"cp", "8"}, {"seq", "1001"}},
                  "cp: expected a divisor of 1001 (seq), found 8"},
        WrongCell{"SequenceParallel",
                  {{"tp", "8"}, {"sp", "1"}, {"seq", "1001"}},
                  "tp with sequence parallelism"},
        WrongCell{"Zero", {{"zero", "4"}}, "zero: expected 0 to 3, found 4"},
        WrongCell{"Chunks", {{"vp", "2"}}, "vp: expected 1 without pipeline"},
        WrongCell{"Stages",
                  {{"pp", "8"}, {"vp", "5"}},
                  "pp x vp: expected at "
                  "most 34"},
        WrongCell{"ExpertsOfDense",
                  {{"ep", "2"}},
                  "ep: expected 1 for a model without experts"},
        WrongCell{"Experts",
                  {{"experts", "6"},
                   {"topk", "2"},
                   {"expert_ffn", "64"},
                   {"ep", "4"}},
                  "ep: expected a divisor of 6 (experts), found 4"},
        WrongCell{"TopExperts",
                  {{"experts", "8"}, {"topk", "9"}, {"expert_ffn", "64"}},
                  "from 1 to 8 experts per token, found 9"},
        WrongCell{"ExpertWidth",
                  {{"experts", "8"}, {"topk", "2"}},
                  "expert_ffn: expected"},
        WrongCell{"Recomputation", {{"ac", "some"}}, "ac: expected none, full"},
        WrongCell{"Part",
                  {{"ac", "selective:core_attn+soup"}},
                  "ac: expected none, full"},
        WrongCell{"Network",
                  {{"internode_gbs_per_gpu", "-1"}},
                  "internode_gbs_per_gpu: expected a number above 0"},
        WrongCell{"Latent", {{"mla_kv_rank", "512"}}, "mla_qk_nope: expected"}),
    [](const auto& tested) { return tested.param.name; });

TEST(TrainingRuns, WithoutAMeasuredTimeNothingIsScored) {
  Cells cells = Example();
  cells["time_s"] = "0";
  EXPECT_THROW(Predict(cells), InputError);
  cells = Example();
  cells["source"] = "";
  EXPECT_THROW(Predict(cells), InputError);
}

Prediction PredictionOf(const std::string& source, double predicted,
                        double measured) {
  return {.source = source, .seconds = predicted, .measured_seconds = measured};
}

// Worked out by hand.
TEST(Score, AveragesOverSources) {
  const Score score =
      ScorePredictions({PredictionOf("a", 11, 10), PredictionOf("a", 8, 10),
                        PredictionOf("a", 13, 10), PredictionOf("b", 9, 10),
                        PredictionOf("b", 0, 10)});
  ASSERT_EQ(score.sources.size(), 2u);
  EXPECT_EQ(score.sources[0].name, "a");
  EXPECT_NEAR(score.sources[0].mean, .2, 1e-12);
  EXPECT_NEAR(score.sources[0].median, .2, 1e-12);
  EXPECT_NEAR(score.sources[0].worst, .3, 1e-12);
  EXPECT_NEAR(score.sources[0].bias, .2 / 3, 1e-12);
  EXPECT_EQ(score.sources[1].rows, 1u);
  EXPECT_EQ(score.sources[1].total, 2u);
  EXPECT_EQ(score.all.rows, 4u);
  EXPECT_EQ(score.all.total, 5u);
  EXPECT_NEAR(score.mean_of_sources, .15, 1e-12);
  EXPECT_NEAR(score.median_of_sources, .15, 1e-12);
  EXPECT_EQ(score.memory.rows, 0u);
}

TEST(Score, OfNothingHasNoSources) {
  EXPECT_TRUE(ScorePredictions({PredictionOf("a", 0, 10)}).sources.empty());
}

// Three published tables, 40 runs (their sources: docs/training_cost_model.md).
// The bounds are a little above the figures in docs/measured/README.md.
TEST(Score, OfPublishedTablesStaysWhereItIs) {
  const std::string path = ACPLAN_DATA_DIR "/training/runs.csv";
  const Score score = ScorePredictions(PredictRuns(
      ReadRuns(graph::ParseCsv(graph::ReadFile(path), path), Systems())));
  ASSERT_EQ(score.sources.size(), 3u);
  for (const ErrorSummary& source : score.sources) {
    EXPECT_EQ(source.rows, source.total);
    EXPECT_LT(source.mean, .08) << source.name;
  }
  EXPECT_EQ(score.memory.rows, 22u);
  EXPECT_LT(score.memory.mean, .01);
  EXPECT_LT(std::abs(score.memory.worst), .015);
}

// 190 readings of Megatron-Core's functional tests. The bounds are a little
// above the figures in docs/measured/README.md.
TEST(MemoryTable, OfFunctionalTestsStaysWhereItIs) {
  const std::string path = ACPLAN_DATA_DIR "/training/memory.csv.gz";
  const graph::CsvTable table = graph::ParseCsv(graph::ReadFile(path), path);
  ASSERT_TRUE(IsMemoryTable(table));
  const std::vector<ErrorSummary> errors =
      SummariseMemory(PredictMemoryTable(table, Systems()));
  ASSERT_FALSE(errors.empty());
  const ErrorSummary& all = errors.back();
  EXPECT_EQ(all.name, "all");
  EXPECT_EQ(all.total, 190u);
  EXPECT_GE(all.rows, 183u);
  EXPECT_LT(all.mean, .036);
  EXPECT_LT(all.median, .011);
}

struct WrongReading {
  std::string column;
  std::string cell;
  std::string complaint;
};

class WrongReadings : public ::testing::TestWithParam<WrongReading> {};

TEST_P(WrongReadings, AreNotRepresentedForAReason) {
  const WrongReading& wrong = GetParam();
  const std::string path = ACPLAN_DATA_DIR "/training/memory.csv.gz";
  graph::CsvTable table = graph::ParseCsv(graph::ReadFile(path), path);
  table.rows.resize(1);
  table.rows[0][table.places.find(wrong.column)->second] = wrong.cell;
  const std::vector<Prediction> predictions =
      PredictMemoryTable(table, Systems());
  EXPECT_EQ(predictions[0].memory_gib, 0);
  EXPECT_THAT(predictions[0].reason, HasSubstr(wrong.complaint));
  EXPECT_EQ(predictions[0].reason.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Cells, WrongReadings,
    ::testing::Values(
        WrongReading{"args", "{", "ci-6edc81f44ed0"},
        WrongReading{"args", R"({"optimizer": "muon"})",
                     "none of optimizer, which is not in the model"},
        WrongReading{"platform", "tpu",
                     "platform: expected dgx_ followed by a GPU"},
        WrongReading{"platform", "dgx_k80", "gpu: expected one of T4"},
        WrongReading{"precision", "fp32", "precision: expected bf16 or fp16"},
        WrongReading{"tp", "3", "tp x pp x cp: expected a divisor of 8"},
        WrongReading{"layers", "", "layers: expected a whole number"},
        WrongReading{"heads", "x", "heads: expected a whole number"}));

std::string ComplaintOfSystems(const std::string& text) {
  try {
    ParseTrainingSystems(text, "systems.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

// Names are shown unescaped, on terminals too.
TEST(TrainingSystems, NamesHaveNoControls) {
  const std::string systems_text =
      graph::ReadFile(ACPLAN_DATA_DIR "/training/systems.json");
  for (const char* list : {"accelerators", "software"}) {
    nlohmann::json systems = nlohmann::json::parse(systems_text);
    systems[list][0]["name"] = "x\u009b31m\u202e";
    EXPECT_THAT(
        ComplaintOfSystems(systems.dump()),
        AllOf(HasSubstr(std::string(list) + "[0].name"),
              HasSubstr("a name without control or invisible characters"),
              HasSubstr("x\\u009b31m\\u202e")));
  }
}

TEST(TrainingSystems, EachNumberSaysWhereItIsFrom) {
  EXPECT_THAT(ComplaintOfSystems("{}"), HasSubstr("accelerators"));
  EXPECT_THAT(
      ComplaintOfSystems(R"({"accelerators": [{"name": "X", "memory_gib":
          {"value": 80}}], "software": []})"),
      HasSubstr("memory_gib"));
  EXPECT_THAT(
      ComplaintOfSystems(R"({"accelerators": [{"name": "X", "memory_gib":
          {"value": 80, "from": ""}}], "software": []})"),
      HasSubstr("expected the source of the number"));
  EXPECT_THAT(
      ComplaintOfSystems(R"({"accelerators": [{"name": "X", "memory_gib":
          {"value": 0, "from": "a page"}}], "software": []})"),
      HasSubstr("from 1 to 10000"));
  EXPECT_THAT(ComplaintOfSystems(R"({"accelerators": [], "software": []})"),
              HasSubstr("software"));
}

TEST(TrainingSystems, KernelsHaveFourTiles) {
  nlohmann::json systems = nlohmann::json::parse(
      graph::ReadFile(ACPLAN_DATA_DIR "/training/systems.json"));
  nlohmann::json& tiles = systems["kernels"]["tiles"]["value"];
  tiles[1][2] = 0;
  EXPECT_THAT(ComplaintOfSystems(systems.dump()),
              HasSubstr("kernels.tiles.value[1][2]: expected a number from"));
  tiles[1].erase(2);
  EXPECT_THAT(ComplaintOfSystems(systems.dump()),
              HasSubstr("expected rows, columns and share of a tile"));
  tiles.erase(1);
  EXPECT_THAT(ComplaintOfSystems(systems.dump()),
              HasSubstr("expected 4 sizes of tiles"));
  systems.erase("kernels");
  EXPECT_THAT(ComplaintOfSystems(systems.dump()), HasSubstr("kernels"));
}

TEST(TrainingSystems, LongestNameThatFitsIsTaken) {
  EXPECT_EQ(FindAccelerator(Systems(), "H100-SXM5-96GB-HBM2e-500W").memory_rate,
            2.4e12);
  EXPECT_EQ(FindAccelerator(Systems(), "GB300-NVL72-279GB").name, "GB300");
  EXPECT_EQ(FindAccelerator(Systems(), "h100").name, "H100-SXM5");
  EXPECT_EQ(FindAccelerator(Systems(), "rtx pro 6000").name, "RTX-PRO-6000");
  EXPECT_NE(FindStack(Systems(), "NeMo 26.06").name,
            FindStack(Systems(), "NeMo 24.07").name);
}

// Returns the complaint about the name of a GPU.
std::string ComplaintOfGpu(std::string_view name) {
  try {
    return "taken for " + FindAccelerator(Systems(), name).name;
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(TrainingSystems, NamesOfOtherGpusAreRefused) {
  EXPECT_THAT(ComplaintOfGpu("H200x"),
              HasSubstr("found \"H200x\"; did you mean H200?"));
  EXPECT_THAT(ComplaintOfGpu("A100-SXM4-40GB-extra"),
              HasSubstr("did you mean A100-SXM4-40GB?"));
  EXPECT_THAT(ComplaintOfGpu("H10"),
              HasSubstr("found \"H10\"; did you mean H100?"));
  EXPECT_THAT(ComplaintOfGpu("B"), HasSubstr("gpu: expected one of T4"));
  EXPECT_THAT(ComplaintOfGpu(""), HasSubstr("gpu: expected one of T4"));
}

}  // namespace
}  // namespace acplan::costmodel
