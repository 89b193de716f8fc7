#include "costmodel/results/strategy_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "costmodel/llm/schedule.h"
#include "costmodel/llm/statistics.h"
#include "tests/costmodel/example_strategy.h"

namespace acplan::costmodel {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

template <typename Change>
NamedExecution Changed(const std::string& name, Change change) {
  NamedExecution strategy{name, ExampleStrategy()};
  change(strategy.execution);
  return strategy;
}

// All that has a figure of its own.
std::vector<NamedExecution> Strategies() {
  return {
      {"base", ExampleStrategy()},
      Changed("none",
              [](Execution& e) { e.activation_recompute = Recompute::kNone; }),
      Changed("attention",
              [](Execution& e) {
                e.activation_recompute = Recompute::kAttentionOnly;
                e.seq_par_ag_redo = true;
              }),
      Changed("offload",
              [](Execution& e) {
                e.weight_offload = true;
                e.activations_offload = true;
                e.optimizer_offload = true;
              }),
      Changed("offload without recomputation",
              [](Execution& e) {
                e.activation_recompute = Recompute::kNone;
                e.activations_offload = true;
              }),
      Changed("sharded",
              [](Execution& e) {
                e.optimizer_sharding = true;
                e.data_par_overlap = true;
              }),
      Changed("forward only",
              [](Execution& e) {
                e.training = false;
                e.activation_recompute = Recompute::kNone;
              }),
      Changed("interleaved", [](Execution& e) { e.pipeline_interleaving = 4; }),
      Changed("uneven",
              [](Execution& e) {
                e.num_procs = 160;
                e.pipeline_par = 5;
              }),
  };
}

std::vector<ComparedStrategy> CompareAll(const Corrections& corrections) {
  return CompareStrategies(ExampleModel(), RoomySystem(), Strategies(),
                           corrections);
}

class StrategyComparison : public testing::TestWithParam<bool> {
 protected:
  Corrections corrections_ = GetParam() ? AllCorrections() : Corrections();
  std::vector<ComparedStrategy> all_ = CompareAll(corrections_);
};

TEST_P(StrategyComparison, PartsAddUp) {
  for (const ComparedStrategy& one : all_) {
    SCOPED_TRACE(one.strategy.name);
    const StrategyFigures& f = one.figures;
    ASSERT_TRUE(one.verdict.Fits());
    EXPECT_DOUBLE_EQ(f.weights + f.activations + f.activation_grads +
                         f.weight_grads + f.optimizer,
                     f.tier1);
    EXPECT_LE(f.checkpoints, f.activations);
    EXPECT_DOUBLE_EQ(f.tier1 + f.tier1_left, kRoomyCapacity);
    EXPECT_DOUBLE_EQ(f.tier2 + f.tier2_left, kRoomyCapacity);
    double sum = 0;
    for (const StrategyFigure& field : kTimeFigures) {
      EXPECT_GE(f.*field.value, 0) << field.key;
      if (field.key != "total_s") sum += f.*field.value;
    }
    EXPECT_NEAR(sum, f.total, 1e-12 * sum);
    EXPECT_LE(f.model_utilisation, f.hardware_utilisation);
    EXPECT_LT(f.model_utilisation, 1);
  }
}

TEST_P(StrategyComparison, FiguresAreThoseOfTheStatistics) {
  for (const ComparedStrategy& one : all_) {
    SCOPED_TRACE(one.strategy.name);
    const Execution& execution = one.strategy.execution;
    const System system = RoomySystem();
    const Evaluation evaluation =
        Evaluate(ExampleModel(), system, execution, corrections_);
    const Statistics statistics =
        ComputeStatistics(ExampleModel(), system, execution, evaluation);
    const auto value = [&](std::string_view name) {
      const double number = Statistic(statistics, name);
      return std::isnan(number) ? 0 : number;
    };
    const StrategyFigures& f = one.figures;
    const auto kept = [&](const std::string& name, bool is_offloaded) {
      return value(is_offloaded ? name + "_with_offload" : name);
    };
    EXPECT_EQ(f.weights, kept("weight_space", execution.weight_offload));
    EXPECT_EQ(f.activations,
              kept("act_space", execution.activations_offload) +
                  kept("act_checkpoint_size", execution.activations_offload));
    EXPECT_EQ(f.optimizer,
              kept("optimizer_space", execution.optimizer_offload));
    EXPECT_EQ(f.tier1, value("proc_mem_tier1_cap_req"));
    EXPECT_EQ(f.tier2, value("proc_mem_tier2_cap_req"));
    EXPECT_EQ(f.forward, value("fw_time"));
    EXPECT_EQ(f.backward, value("bw_time"));
    EXPECT_EQ(f.repeated_comm, value("recomm_exposed_time"));
    EXPECT_EQ(f.data_comm, value("dp_comm_exposed_time"));
    EXPECT_EQ(f.total, value("total_time"));
    EXPECT_EQ(f.sample_rate, value("sample_rate"));
    EXPECT_DOUBLE_EQ(f.token_rate, 2048 * value("sample_rate"));

    // total_efficiency is of the fullest processor and counts the optimizer's
    // step with each microbatch.
    const double optimizer = value("block_optim_flops");
    const double useful = value("useful_flops");
    const double stages = static_cast<double>(execution.pipeline_par);
    const double blocks = std::ceil(48 / stages);
    EXPECT_NEAR(f.model_utilisation,
                value("total_efficiency") * (useful - optimizer) / useful * 48 /
                    (stages * blocks),
                1e-12);
    EXPECT_NEAR(
        f.hardware_utilisation / f.model_utilisation,
        (useful - optimizer + value("block_re_flops")) / (useful - optimizer),
        1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, StrategyComparison, testing::Bool(),
                         [](const auto& one) {
                           return one.param ? "Corrected" : "Calculon";
                         });

// The backward pass has twice the forward pass's matrix products.
TEST(StrategyUtilisation, FullRecomputationAddsAForwardPass) {
  const std::vector<ComparedStrategy> all = CompareAll(AllCorrections());
  const auto ratio = [](const ComparedStrategy& one) {
    return one.figures.hardware_utilisation / one.figures.model_utilisation;
  };
  EXPECT_NEAR(ratio(all[0]), 4. / 3, 1e-3);
  EXPECT_EQ(ratio(all[1]), 1);
  EXPECT_GT(ratio(all[2]), 1.001);
  EXPECT_LT(ratio(all[2]), 1.1);
}

// 72 b s l h^2 (1 + s / 6h), the matrix products without the logits, of
// Korthikanti et al. (2022); the rest is the vector engine's.
TEST(StrategyUtilisation, IsNearThePublishedFormula) {
  const ComparedStrategy base = CompareAll(AllCorrections())[0];
  const double h = 6144;
  const double s = 2048;
  const double flops = 72. * 64 * s * 48 * h * h * (1 + s / (6 * h));
  EXPECT_NEAR(base.figures.model_utilisation,
              flops / base.figures.total / 64 / 312e12, 0.01);
}

TEST(ComparisonOfTheInfeasible, MemoryHasAllFiguresOfMemory) {
  System system = RoomySystem();
  const std::vector<ComparedStrategy> roomy = CompareAll({});
  system.mem1.capacity = roomy[0].figures.tier1 - 4096;
  const ComparedStrategy one =
      CompareStrategies(ExampleModel(), system, Strategies(), {})[0];
  EXPECT_EQ(StatusOf(one.verdict), "tier1_too_small");
  for (const StrategyFigure& field : kMemoryFigures) {
    if (field.key.find("left") != std::string_view::npos) continue;
    EXPECT_EQ(one.figures.*field.value, roomy[0].figures.*field.value);
  }
  EXPECT_EQ(one.figures.tier1_left, -4096);
  EXPECT_THAT(ReasonOf(one, ExampleModel(), system),
              HasSubstr("4096 bytes are missing"));
  for (const StrategyFigure& field : kTimeFigures) {
    EXPECT_TRUE(std::isnan(one.figures.*field.value)) << field.key;
  }
  for (const StrategyFigure& field : kRateFigures) {
    EXPECT_TRUE(std::isnan(one.figures.*field.value)) << field.key;
  }
}

TEST(ComparisonOfTheInfeasible, TheSecondTierToo) {
  System system = RoomySystem();
  system.mem2.capacity = 1;
  const ComparedStrategy one =
      CompareStrategies(ExampleModel(), system, Strategies(), {})[3];
  EXPECT_EQ(StatusOf(one.verdict), "tier2_too_small");
  EXPECT_EQ(one.figures.tier2_left, 1 - one.figures.tier2);
  EXPECT_THAT(ReasonOf(one, ExampleModel(), system), HasSubstr("tier 2"));
}

TEST(ComparisonOfTheInfeasible, ABrokenRuleHasNoFigures) {
  const std::vector<NamedExecution> strategies = {
      Changed("a", [](Execution& e) { e.data_par_net = 0; }),
      {"b", ExampleStrategy()}};
  const std::vector<ComparedStrategy> all =
      CompareStrategies(ExampleModel(), RoomySystem(), strategies, {});
  EXPECT_EQ(StatusOf(all[0].verdict), "network_too_small");
  EXPECT_EQ(ReasonOf(all[0], ExampleModel(), RoomySystem()),
            "network tier 0 connects 8 processors, tensor_par 8 * data_par 4 "
            "on it need 32");
  EXPECT_TRUE(std::isnan(all[0].figures.tier1));
  // It is the base: there are no ratios.
  const ordered_json json =
      ComparisonJson(all, ExampleModel(), RoomySystem(), {})["strategies"];
  EXPECT_TRUE(json[0]["memory"]["tier1_bytes"].is_null());
  EXPECT_TRUE(json[1]["ratios"]["time"]["total_s"].is_null());
  EXPECT_EQ(json[1]["time_shares"]["total"], 1);
  EXPECT_EQ(json[1]["reason"], nullptr);
}

TEST(ComparisonFiles, RatiosAreToTheFirst) {
  const std::vector<ComparedStrategy> all = CompareAll(AllCorrections());
  const ordered_json json =
      ComparisonJson(all, ExampleModel(), RoomySystem(), AllCorrections());
  EXPECT_EQ(json["corrections"].size(), kCorrections.size());
  const ordered_json& first = json["strategies"][0]["ratios"];
  EXPECT_EQ(first["time"]["total_s"], 1);
  EXPECT_EQ(first["time"]["offload_s"], nullptr);  // 0 over 0
  EXPECT_EQ(json["strategies"][1]["ratios"]["memory"]["activations_bytes"],
            all[1].figures.activations / all[0].figures.activations);
  for (const ordered_json& one : json["strategies"]) {
    double sum = 0;
    for (const auto& [key, share] : one["time_shares"].items()) {
      if (key != "total") sum += share.get<double>();
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line + ",");
  for (std::string field; std::getline(stream, field, ',');)
    fields.push_back(field);
  return fields;
}

TEST(ComparisonFiles, CsvIsUnrounded) {
  const std::vector<ComparedStrategy> all = CompareAll({});
  std::istringstream csv(ComparisonCsv(all, ExampleModel(), RoomySystem()));
  std::string line;
  std::getline(csv, line);
  const std::vector<std::string> keys = Fields(line);
  EXPECT_EQ(keys.size(), 4 + 23 + 10 + 11 + 4);
  for (const ComparedStrategy& one : all) {
    std::getline(csv, line);
    const std::vector<std::string> fields = Fields(line);
    ASSERT_EQ(fields.size(), keys.size());
    EXPECT_EQ(fields[0], one.strategy.name);
    EXPECT_EQ(fields[1], "fits");
    const auto at = [&](std::string_view key) {
      return fields[std::ranges::find(keys, key) - keys.begin()];
    };
    EXPECT_EQ(std::stod(at("total_s")), one.figures.total);
    EXPECT_EQ(std::stod(at("tier1_bytes")), one.figures.tier1);
    EXPECT_EQ(at("training"),
              one.strategy.execution.training ? "true" : "false");
  }
  EXPECT_FALSE(std::getline(csv, line));
}

TEST(ComparisonFiles, CsvQuotesWhatNeedsIt) {
  const std::vector<NamedExecution> strategies = {
      Changed("a,\"b\"", [](Execution& e) { e.data_par_net = 0; })};
  EXPECT_THAT(
      ComparisonCsv(
          CompareStrategies(ExampleModel(), RoomySystem(), strategies, {}),
          ExampleModel(), RoomySystem()),
      HasSubstr(
          "\n\"a,\"\"b\"\"\",network_too_small,\"network tier 0 connects "
          "8 processors, tensor_par 8 * data_par 4 on it need 32\",,64,"));
}

}  // namespace
}  // namespace acplan::costmodel
