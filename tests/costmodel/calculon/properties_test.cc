#include <gtest/gtest.h>

#include <vector>

#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/statistics.h"
#include "costmodel/calculon/search/fixed_walk.h"
#include "tests/costmodel/calculon/golden_data.h"

namespace acplan::costmodel {
namespace {

constexpr double kNoise = 1 + 1e-12;

const Model& TestModel() { return GoldenModel("models/megatron-22B.json"); }

System RoomySystem(bool is_roofline) {
  System system = GoldenSystem("systems/a100_80g.json");
  system.is_roofline = is_roofline;
  system.mem1.capacity = 1e18;
  system.mem2.capacity = 1e18;
  return system;
}

// Returns the strategies of a whole search, of all kinds.
std::vector<Execution> Strategies(const System& system) {
  SearchProblem problem;
  problem.model = TestModel();
  problem.system = system;
  problem.num_procs = 32;
  problem.max_batch = 32;
  std::vector<Execution> executions;
  int64_t count = 0;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    FixedWalk walk(problem, unit);
    for (const SearchVariant& variant : SearchVariants(problem, unit)) {
      walk.Run(variant, {},
               [&](const Execution& execution, int64_t index,
                   const MemoryNeeds&, const BatchTimes&, const BlockCosts&) {
                 if (index % 5 == 0 && ++count % 3 == 0)
                   executions.push_back(execution);
               });
    }
  }
  return executions;
}

double TimeOn(const System& system, const Execution& execution) {
  const Evaluation evaluation = Evaluate(TestModel(), system, execution);
  EXPECT_TRUE(evaluation.verdict.Fits());
  return evaluation.times.total;
}

double MemoryOf(const System& system, const Execution& execution) {
  const Evaluation evaluation = Evaluate(TestModel(), system, execution);
  EXPECT_TRUE(evaluation.verdict.Fits());
  return evaluation.memory.tier1;
}

// Returns a step function's throughput times two.
EfficiencyCurve Faster(const EfficiencyCurve& curve) {
  std::vector<EfficiencyStep> steps;
  for (const double size : {1e11, 1.6e10, 1e9, 1e8, 1e7, 1e6, 0.}) {
    steps.push_back({size, curve.Throughput(size) / curve.peak()});
  }
  return {2 * curve.peak(), steps};
}

class Properties : public testing::TestWithParam<bool> {
 protected:
  System system_ = RoomySystem(GetParam());
  std::vector<Execution> strategies_ = Strategies(system_);
};

TEST_P(Properties, ThereAreManyStrategies) {
  EXPECT_GT(strategies_.size(), 1000);
}

// The time is monotone only if nothing is overlapped or offloaded, since
// overlapped communication counts in full.
TEST_P(Properties, TimeFallsWithFasterNetworks) {
  System faster = system_;
  for (Network& network : faster.networks) network.bandwidth *= 2;
  for (const Execution& execution : strategies_) {
    if (execution.data_par_overlap) continue;
    EXPECT_LE(TimeOn(faster, execution), TimeOn(system_, execution) * kNoise);
  }
}

// Without a pipeline the latency of a send that never happens hides a part of
// the offload.
TEST_P(Properties, TimeFallsWithLowerLatency) {
  System faster = system_;
  for (Network& network : faster.networks) network.latency = 0;
  for (const Execution& execution : strategies_) {
    if (execution.data_par_overlap || execution.pipeline_par == 1) continue;
    EXPECT_LE(TimeOn(faster, execution), TimeOn(system_, execution) * kNoise);
  }
}

TEST_P(Properties, TimeFallsWithFasterOffload) {
  System faster = system_;
  faster.mem2.bandwidth = Faster(system_.mem2.bandwidth);
  for (const Execution& execution : strategies_) {
    EXPECT_LE(TimeOn(faster, execution), TimeOn(system_, execution) * kNoise);
  }
}

TEST_P(Properties, TimeFallsWithFasterEngines) {
  System faster = system_;
  for (Processor* processor : {&faster.matrix, &faster.vector}) {
    for (auto& engine : processor->engines) {
      if (engine) engine = Faster(*engine);
    }
  }
  for (const Execution& execution : strategies_) {
    if (execution.data_par_overlap ||
        execution.tensor_par_overlap != TensorOverlap::kNone) {
      continue;
    }
    EXPECT_LE(TimeOn(faster, execution), TimeOn(system_, execution) * kNoise);
  }
}

TEST_P(Properties, MemoryFallsWithMoreRecomputation) {
  for (Execution execution : strategies_) {
    if (execution.seq_par_ag_redo || execution.activations_offload) continue;
    // Checkpoints are not sharded and overlapped layers store nothing.
    if (execution.tensor_par_comm_type != TensorCommType::kAllReduce ||
        execution.tensor_par_overlap != TensorOverlap::kNone) {
      continue;
    }
    // A checkpoint saves nothing if only one block's activations are live.
    const Schedule schedule = ScheduleOf(TestModel(), execution);
    if (schedule.blocks * schedule.microbatches == 1) continue;
    execution.activation_recompute = Recompute::kFull;
    const double full = MemoryOf(system_, execution);
    execution.activation_recompute = Recompute::kAttentionOnly;
    const double attention = MemoryOf(system_, execution);
    execution.activation_recompute = Recompute::kNone;
    const double none = MemoryOf(system_, execution);
    EXPECT_LE(full, attention * kNoise);
    EXPECT_LE(attention, none * kNoise);
  }
}

TEST_P(Properties, MemoryFallsWithShardedOptimizers) {
  for (Execution execution : strategies_) {
    if (execution.data_par == 1) continue;
    execution.optimizer_sharding = false;
    const double whole = MemoryOf(system_, execution);
    execution.optimizer_sharding = true;
    EXPECT_LT(MemoryOf(system_, execution), whole);
  }
}

TEST_P(Properties, MemoryFallsWithSequenceParallelism) {
  for (Execution execution : strategies_) {
    if (execution.tensor_par == 1 || execution.seq_par_ag_redo) continue;
    if (execution.tensor_par_overlap != TensorOverlap::kNone) continue;
    execution.tensor_par_comm_type = TensorCommType::kAllReduce;
    const double whole = MemoryOf(system_, execution);
    execution.tensor_par_comm_type = TensorCommType::kScattered;
    EXPECT_LT(MemoryOf(system_, execution), whole);
  }
}

TEST_P(Properties, MemoryFallsWithOffload) {
  for (Execution execution : strategies_) {
    if (execution.pipeline_par > 12) continue;
    execution.optimizer_offload = false;
    const double whole = MemoryOf(system_, execution);
    execution.optimizer_offload = true;
    EXPECT_LE(MemoryOf(system_, execution), whole * kNoise);
  }
}

TEST_P(Properties, ForwardOnlyCostsLess) {
  for (Execution execution : strategies_) {
    if (execution.activation_recompute != Recompute::kNone ||
        execution.data_par_overlap || execution.optimizer_offload ||
        execution.activations_offload || execution.optimizer_sharding) {
      continue;
    }
    const double training = TimeOn(system_, execution);
    const double memory = MemoryOf(system_, execution);
    execution.training = false;
    EXPECT_LT(TimeOn(system_, execution), training);
    EXPECT_LT(MemoryOf(system_, execution), memory);
  }
}

TEST_P(Properties, TheTotalIsTheSumOfItsParts) {
  for (const Execution& execution : strategies_) {
    const Evaluation evaluation = Evaluate(TestModel(), system_, execution);
    const Statistics s =
        ComputeStatistics(TestModel(), system_, execution, evaluation);
    double sum = 0;
    for (const char* part :
         {"fw_time", "bw_time", "optim_step_time", "fw_offload_exposed_time",
          "bw_offload_exposed_time", "recompute_time", "recomm_exposed_time",
          "bubble_time", "tp_comm_exposed_time", "pp_comm_exposed_time",
          "dp_comm_exposed_time"}) {
      sum += Statistic(s, part);
      EXPECT_GE(Statistic(s, part), 0) << part;
    }
    EXPECT_NEAR(sum, Statistic(s, "total_time"), 1e-9 * sum);
    EXPECT_NEAR(
        Statistic(s, "compute_efficiency") * Statistic(s, "system_efficiency"),
        Statistic(s, "total_efficiency"), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Properties, testing::Values(false, true),
                         [](const auto& one) {
                           return one.param ? "Roofline" : "NoOverlap";
                         });

}  // namespace
}  // namespace acplan::costmodel
