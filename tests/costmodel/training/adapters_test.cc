#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/plans/training_plan.h"
#include "costmodel/training/plans/training_plan_check.h"
#include "costmodel/training/time/step_time.h"
#include "costmodel/training/training_report.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

TrainingJob WithAdapters(int64_t rank) {
  TrainingJob job = Llama8B();
  job.strategy.lora_rank = rank;
  return job;
}

// The inputs and results of a layer's products: query, key and value; output; gate and up;
// down.
constexpr double kInputsAndResults =
    (4096 + 6144) + (4096 + 4096) + (4096 + 2 * 14336) + (14336 + 4096);
constexpr double kWeights =
    4096.0 * 6144 + 4096.0 * 4096 + 4096.0 * 2 * 14336 + 14336.0 * 4096;

TEST(Adapters, AreAllThatIsTrained) {
  const TrainingJob job = WithAdapters(16);
  const double trained = 32 * 16 * kInputsAndResults;
  EXPECT_DOUBLE_EQ(CountTrainedParameters(job), trained);
  const RankMemory full = PredictStepMemory(Llama8B()).Worst();
  const RankMemory memory = PredictStepMemory(job).Worst();
  EXPECT_NEAR(memory.parameters, full.parameters + 2 * trained, 1);
  EXPECT_NEAR(memory.gradients / full.gradients, trained / 8.03e9, 1e-5);
  EXPECT_NEAR(memory.optimizer / full.optimizer, trained / 8.03e9, 1e-5);
  TrainingJob attention = job;
  attention.strategy.lora_attention_only = true;
  EXPECT_DOUBLE_EQ(CountTrainedParameters(attention),
                   32.0 * 16 * (4096 + 6144 + 4096 + 4096));
}

// Inputs are kept for the gradients of adapters, and their own results.
TEST(Adapters, KeepTheInputsOfTheirProducts) {
  const double rows = 8192;
  const double plain = SavedBytesOfLayer(Llama8B(), false);
  EXPECT_DOUBLE_EQ(SavedBytesOfLayer(WithAdapters(16), false),
                   plain + 3 * 2 * 16 * rows);
  TrainingJob attention = WithAdapters(16);
  attention.strategy.lora_attention_only = true;
  EXPECT_DOUBLE_EQ(SavedBytesOfLayer(attention, false),
                   plain + 2 * 16 * rows - 2 * rows * (4096 + 14336));
}

TEST(Adapters, LeaveOutTheGradientsOfWeights) {
  const TrainingJob full = Llama8B();
  const TrainingJob job = WithAdapters(16);
  const double share =
      PredictStepTime(job).compute / PredictStepTime(full).compute;
  EXPECT_GT(share, 2.0 / 3);
  EXPECT_LT(share, 1);
  EXPECT_NEAR(CountIterationFlops(job).model,
              2.0 / 3 * CountIterationFlops(full).model, 1e6);
  EXPECT_LT(PredictStepTime(job).optimizer,
            PredictStepTime(full).optimizer / 100);
}

TEST(Adapters, FourBitsReplaceTheWeightsOfLayers) {
  TrainingJob job = WithAdapters(16);
  const RankMemory half = PredictStepMemory(job).Worst();
  const double seconds = PredictStepTime(job).Total();
  job.strategy.has_four_bit_base = true;
  const RankMemory quarter = PredictStepMemory(job).Worst();
  const double bits = 4 + 8.0 / 64 + 32.0 / (64 * 256);
  EXPECT_NEAR(half.parameters - quarter.parameters,
              32 * kWeights * (2 - bits / 8), 1);
  // The largest weight is there in 16 bits while its product runs.
  EXPECT_NEAR(quarter.working - half.working, 2 * 4096.0 * 2 * 14336, 1);
  EXPECT_GT(PredictStepTime(job).Total(), seconds);
}

// Shards of frozen weights are gathered; only adapters' gradients are scattered.
TEST(Adapters, ShardsOfFrozenWeightsAreGathered) {
  TrainingJob job = WithAdapters(16);
  job.strategy.gpus = 64;
  job.strategy.global_batch = 64;
  job.strategy.zero = 3;
  job.strategy.fsdp = 64;
  TrainingJob full = job;
  full.strategy.lora_rank = 0;
  const RankMemory memory = PredictStepMemory(job).Worst();
  const RankMemory all = PredictStepMemory(full).Worst();
  EXPECT_NEAR(memory.parameters / all.parameters, 1, .01);
  EXPECT_LT(memory.gradients, all.gradients / 100);
  EXPECT_LT(PredictStepTime(job).Total(), PredictStepTime(full).Total());
}

TEST(Adapters, HavePlans) {
  TrainingJob job = WithAdapters(16);
  const double most = PredictStepMemory(job).Worst().Total();
  const double budget = most - .4 * PredictStepMemory(job).Worst().activations;
  job.strategy.recomputation = Recomputation::kPlan;
  const TrainingPlan plan = PlanTraining(job, budget);
  EXPECT_EQ(FindTrainingPlanError(job, budget, plan), std::nullopt);
  EXPECT_GT(plan.time.recompute, 0);
}

}  // namespace
}  // namespace acplan::costmodel
