#include "costmodel/calculon/llm/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/fit.h"

namespace acplan::costmodel {
namespace {

using nlohmann::ordered_json;
using ::testing::StartsWith;

Model SmallModel() {
  return {.hidden = 64,
          .feedforward = 256,
          .seq_size = 32,
          .attn_heads = 4,
          .attn_size = 16,
          .num_blocks = 8};
}

System A100() { return ReadSystem(ACPLAN_DATA_DIR "/systems/a100_80g.json"); }

TEST(NumberJson, IsWholeWhereItCan) {
  EXPECT_EQ(NumberJson(3).dump(), "3");
  EXPECT_EQ(NumberJson(-0.5).dump(), "-0.5");
  EXPECT_EQ(NumberJson(9007199254740992).dump(), "9007199254740992");
  // Not every integer beyond 2^53 is a double.
  EXPECT_EQ(NumberJson(0x1p60).type(), ordered_json::value_t::number_float);
  EXPECT_TRUE(NumberJson(std::nan("")).is_null());
  EXPECT_TRUE(NumberJson(std::numeric_limits<double>::infinity()).is_null());
}

TEST(ToJson, WritesAnExecutionThatCanBeReadAgain) {
  const Execution execution = {.num_procs = 8,
                               .tensor_par = 2,
                               .pipeline_par = 2,
                               .data_par = 2,
                               .tensor_par_net = 0,
                               .pipeline_par_net = 1,
                               .data_par_net = 1,
                               .batch_size = 16,
                               .microbatch_size = 2,
                               .activation_recompute = Recompute::kFull,
                               .data_par_overlap = true};
  EXPECT_EQ(ParseExecution(ToJson(execution).dump(), "x.json"), execution);
}

TEST(ToJson, NamesTheStatisticsOfALayer) {
  const ordered_json layers =
      ToJson(ListLayers(SmallModel(), A100(), Execution{}));
  ASSERT_FALSE(layers.empty());
  for (const ordered_json& layer : layers) {
    EXPECT_TRUE(layer.at("name").is_string());
    EXPECT_EQ(layer.size(), 1u + kLayerStatistics);
    for (const std::string_view name : kLayerStatisticNames) {
      EXPECT_TRUE(layer.contains(std::string(name))) << name;
    }
  }
}

TEST(PeersJson, LeavesOutWhatHasADegreeOfOne) {
  const Execution execution = {
      .num_procs = 6, .tensor_par = 2, .pipeline_par = 3};
  const ordered_json peers = PeersJson(execution);
  EXPECT_EQ(peers.size(), 6u);
  EXPECT_EQ(peers.at("0").dump(), R"({"tensor":[0,1],"pipeline":2})");
  // From the last stage to the first.
  EXPECT_EQ(peers.at("5").dump(), R"({"tensor":[4,5],"pipeline":1})");
  EXPECT_EQ(PeersJson({.num_procs = 2, .data_par = 2}).at("1").dump(),
            R"({"data":[0,1]})");
}

TEST(ResultText, IsThatOfPythonWherePacked) {
  const ordered_json document = ordered_json::parse(
      R"({"b": [1, 2.5, null, "x\"y"], "a": {}, "c": [], "d": {"e": true}})");
  EXPECT_EQ(ResultText(document, /*is_packed=*/true),
            R"({"b": [1, 2.5, null, "x\"y"], "a": {}, "c": [], )"
            R"("d": {"e": true}})");
  EXPECT_EQ(ResultText(ordered_json::parse(R"({"b":[1]})"), false),
            "{\n  \"b\": [\n    1\n  ]\n}");
}

TEST(CsvRow, HasACellForEachHeading) {
  const Model model = SmallModel();
  const System system = A100();
  const Execution execution = {.fused_activation = true, .training = false};
  const Evaluation evaluation = Evaluate(model, system, execution);
  ASSERT_TRUE(evaluation.verdict.Fits());
  Statistics statistics =
      ComputeStatistics(model, system, execution, evaluation);
  statistics[0] = std::nan("");
  statistics[1] = 1e-5;
  const std::string row = CsvRow(execution, statistics);
  EXPECT_THAT(CsvHeading(), StartsWith("num_procs,tensor_par,pipeline_par,"));
  EXPECT_EQ(std::ranges::count(row, ','),
            std::ranges::count(CsvHeading(), ','));
  EXPECT_THAT(row, StartsWith("1,1,1,1,0,0,0,1,1,float16,True,multihead,none,1,"
                              "False,ar,none,False,False,False,False,False,"
                              "False,None,1e-05,"));
  const ordered_json document = ToJson(statistics);
  EXPECT_EQ(document.size(), static_cast<size_t>(kStatistics));
  EXPECT_TRUE(document.at(std::string(kStatisticNames[0])).is_null());
}

// A rule that an execution breaks, and the text about it.
struct Broken {
  Rule rule;
  std::string words;    // of a contradiction, or Calculon's
  std::string numbers;  // of an infeasible execution
  Execution execution;
};

TEST(CheckFit, SaysWhichRuleIsBrokenAndWithWhichNumbers) {
  const Model model = SmallModel();
  System system = A100();
  ASSERT_EQ(system.networks.size(), 2u);
  system.networks[0].size = 8;
  system.networks[0].must_be_filled = true;
  system.networks[1].must_be_filled = false;
  const std::vector<Broken> table = {
      {Rule::kTensorNet, "tensor_par_net: ", "", {.tensor_par_net = 2}},
      {Rule::kPipelineNet, "pipeline_par_net: ", "", {.pipeline_par_net = 3}},
      {Rule::kDataNet, "data_par_net: ", "", {.data_par_net = 2}},
      {Rule::kHeadsSplit,
       "tensor_par: expected a divisor of attn_heads (4), found 8",
       "",
       {.num_procs = 8, .tensor_par = 8}},
      {Rule::kNetworkTooSmall,
       "Network tier0 isn't big enough",
       "network tier 0 connects 8 processors, ",
       {.num_procs = 16, .tensor_par = 16}},
      {Rule::kNetworkNotFilled,
       "Network tier0 isn't fully used",
       "network tier 0 connects 8 processors and must be filled, ",
       {.num_procs = 3, .data_par = 3}},
      {Rule::kInterleavingTooLarge,
       "Pipeline interleaving must be less than or equal to the number of "
       "blocks per processor",
       "pipeline_interleaving 5 must divide the 4 blocks of a processor "
       "(num_blocks 8 over pipeline_par 2)",
       {.num_procs = 2, .pipeline_par = 2, .pipeline_interleaving = 5}},
      {Rule::kInterleavingNoFactor,
       "Pipeline interleaving must be a factor value of the number of blocks "
       "per processor",
       "pipeline_interleaving 3 must divide the 4 blocks of a processor "
       "(num_blocks 8 over pipeline_par 2)",
       {.num_procs = 2, .pipeline_par = 2, .pipeline_interleaving = 3}},
      {Rule::kTooFewBlocksToOffload,
       "Offloading requires each processor to handle at least 3 blocks",
       "a processor has 2 of the 3 blocks that offloading needs (num_blocks 8 "
       "over pipeline_par 4)",
       {.num_procs = 4, .pipeline_par = 4, .weight_offload = true}},
  };
  for (const Broken& broken : table) {
    SCOPED_TRACE(broken.words);
    const Verdict verdict = CheckFit(model, system, broken.execution);
    ASSERT_EQ(static_cast<int>(verdict.rule), static_cast<int>(broken.rule));
    EXPECT_EQ(verdict.IsInfeasible(), !broken.numbers.empty());
    const std::string contradiction =
        DescribeContradiction(verdict, model, system, broken.execution);
    const std::string numbers =
        DescribeNumbers(verdict, model, system, broken.execution);
    if (verdict.IsInfeasible()) {
      EXPECT_EQ(DescribeInfeasible(verdict), broken.words);
      EXPECT_THAT(numbers, StartsWith(broken.numbers));
      EXPECT_EQ(contradiction, "");
    } else {
      EXPECT_THAT(contradiction, StartsWith(broken.words));
      EXPECT_EQ(DescribeInfeasible(verdict), "");
      EXPECT_EQ(numbers, "");
    }
  }
}

TEST(CheckFit, NamesTheSizeThatDoesNotSplit) {
  const System system = A100();
  const Execution four = {.num_procs = 4, .tensor_par = 4};
  const auto said = [&](Model model, Execution execution) {
    return DescribeContradiction(CheckFit(model, system, execution), model,
                                 system, execution);
  };
  const std::string expected = "tensor_par: expected a divisor of ";
  Model model = SmallModel();
  model.hidden = 66;
  EXPECT_EQ(said(model, four), expected + "hidden (66), found 4");
  model = SmallModel();
  model.feedforward = 258;
  EXPECT_EQ(said(model, four), expected + "feedforward (258), found 4");
  model = SmallModel();
  model.seq_size = 33;
  EXPECT_EQ(said(model, four), "");
  Execution scattered = four;
  scattered.tensor_par_comm_type = TensorCommType::kScattered;
  EXPECT_EQ(said(model, scattered),
            expected + "microbatch_size * seq_size (33), found 4");
}

TEST(CheckFit, NamesADatatypeThatNoEngineHas) {
  const Execution execution = {.datatype = Datatype::kFloat16};
  System system = A100();
  system.vector.engines[static_cast<size_t>(Datatype::kFloat16)].reset();
  const Model model = SmallModel();
  const Verdict verdict = CheckFit(model, system, execution);
  EXPECT_EQ(DescribeContradiction(verdict, model, system, execution),
            "datatype: expected one that the system's matrix and vector "
            "engines have, found \"float16\"");
}

TEST(CountParameters, AreThoseOfGpt3) {
  // 96 blocks, hidden 12,288: 174.6 billion, including positions and 51,200
  // words.
  const Model model = ReadModel(ACPLAN_DATA_DIR "/models/gpt3-175B.json");
  const double h = 12288;
  EXPECT_DOUBLE_EQ(CountParameters(model),
                   96 * (12 * h * h + 13 * h) + (51200 + 2048) * h);
}

}  // namespace
}  // namespace acplan::costmodel
