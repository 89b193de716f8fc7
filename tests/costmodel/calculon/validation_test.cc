#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/validation/megatron_2021.h"
#include "costmodel/calculon/validation/sequence_parallelism.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::costmodel {
namespace {

namespace fs = std::filesystem;

const fs::path kData = ACPLAN_DATA_DIR;

double ComputedOf(const ComparisonTable& table, std::string_view model,
                  std::string_view mode) {
  for (const Comparison& row : table) {
    if (row.model == model && row.mode == mode) return row.computed;
  }
  ADD_FAILURE() << model << " " << mode;
  return 0;
}

TEST(Comparison, HasErrorsOfEitherSign) {
  const ComparisonTable table = {{"a", "none", 10, 9}, {"b", "none", 4, 5}};
  EXPECT_NEAR(table[0].Delta(), 10, 1e-12);
  EXPECT_NEAR(table[1].Delta(), -25, 1e-12);
  EXPECT_NEAR(AverageError(table), 17.5, 1e-12);
  EXPECT_NEAR(MaximumError(table), 25, 1e-12);
}

// Korthikanti et al., equations 1 and 2: a layer that is spread over t ranks
// takes s b h (10 + 24 / t + 5 a s / (h t)) bytes without recomputation, and s
// b h / t (34 + 5 a s / h) with sequence parallelism.
TEST(CompareFigure7, SequenceParallelismIsThatOfThePapersFormula) {
  const ComparisonTable table = CompareFigure7(kData);
  EXPECT_EQ(table.size(), 20u);
  for (const std::string_view name :
       {"gpt3-175B", "turing-530B", "megatron-1T"}) {
    const Model model =
        ReadModel(kData / "models" / (std::string(name) + ".json"));
    const double t = 8;
    const double scores = 5.0 * static_cast<double>(model.attn_heads) *
                          static_cast<double>(model.seq_size) /
                          static_cast<double>(model.hidden);
    const double share = 100 * (34 + scores) / t / (10 + 24 / t + scores / t);
    EXPECT_EQ(ComputedOf(table, name, "none"), 100);
    EXPECT_NEAR(ComputedOf(table, name, "seq"), share, .15) << name;
    EXPECT_LT(ComputedOf(table, name, "seqsel"),
              ComputedOf(table, name, "sel"));
    EXPECT_LT(ComputedOf(table, name, "full"),
              ComputedOf(table, name, "seqsel"));
  }
}

TEST(CompareFigure1, StatesDoNotDependOnTheMode) {
  const Figure1 figure = CompareFigure1(kData);
  ASSERT_EQ(figure.states.size(), 8u);
  ASSERT_EQ(figure.activations.size(), 8u);
  for (size_t i = 0; i < 8; i += 2) {
    EXPECT_EQ(figure.states[i].model, figure.states[i + 1].model);
    EXPECT_EQ(figure.states[i].computed, figure.states[i + 1].computed);
    EXPECT_GT(figure.activations[i].computed,
              figure.activations[i + 1].computed);
  }
  EXPECT_LT(MaximumError(figure.states), 11);
  EXPECT_LT(MaximumError(figure.activations), 9);
}

// Calculon's paper states an error of 3.65% on average, 8.87% at most.
TEST(CompareTable5, IsAsFarOffAsItsPaperSays) {
  const ComparisonTable table = CompareTable5(kData);
  ASSERT_EQ(table.size(), 8u);
  EXPECT_NEAR(AverageError(table), 3.65, .005);
  EXPECT_NEAR(MaximumError(table), 8.87, .005);
  for (const Comparison& row : table) EXPECT_LT(row.memory, 80e9) << row.model;
}

TEST(CompareTable5, SaysWhichFileIsNotThere) {
  EXPECT_THROW(CompareTable5(kData / "nowhere"), InputError);
}

// An execution with more processors than a tier of the network connects.
TEST(CompareTable5, RefusesAnExecutionThatDoesNotFit) {
  const graph::TemporaryFolder folder;
  for (const char* part : {"models", "systems", "validation"}) {
    fs::copy(kData / part, folder.path() / part, fs::copy_options::recursive);
  }
  const fs::path path = folder.path() / "validation" / "seqsel" / "tab5" /
                        "megatron-22B_full.json";
  nlohmann::json execution = nlohmann::json::parse(graph::ReadFile(path));
  execution["num_procs"] = execution["tensor_par"] = 16;
  graph::WriteFile(path, execution.dump());
  try {
    CompareTable5(folder.path());
    ADD_FAILURE() << "was compared";
  } catch (const InputError& error) {
    EXPECT_EQ(error.what(), path.string() +
                                ": expected a feasible execution, found: "
                                "Network tier0 isn't big enough");
  }
  execution["tensor_par_net"] = 7;
  graph::WriteFile(path, execution.dump());
  try {
    CompareTable5(folder.path());
    ADD_FAILURE() << "was compared";
  } catch (const InputError& error) {
    EXPECT_TRUE(std::string_view(error.what())
                    .starts_with(path.string() +
                                 ": expected a feasible execution, found: "
                                 "tensor_par_net: "))
        << error.what();
  }
}

TEST(CompareMegatron2021, ComputesEveryRunOfTheTable) {
  const std::vector<MegatronRun> runs = CompareMegatron2021(kData);
  ASSERT_EQ(runs.size(), 10u);
  double sum = 0;
  for (const MegatronRun& run : runs) {
    const Execution& e = run.execution;
    // 312 is an A100's peak.
    EXPECT_GT(run.computed, .3 * 312) << run.model;
    EXPECT_LT(run.computed, .7 * 312) << run.model;
    EXPECT_EQ(e.tensor_par * e.pipeline_par * e.data_par, e.num_procs);
    EXPECT_EQ(e.batch_size % (e.data_par * e.microbatch_size), 0);
    EXPECT_EQ(run.TimeError(), 100 * (run.measured / run.computed - 1));
    sum += std::abs(run.TimeError());
  }
  EXPECT_NEAR(AverageTimeError(runs), sum / 10, 1e-12);
  EXPECT_LT(AverageTimeError(runs), 13);
}

}  // namespace
}  // namespace acplan::costmodel
