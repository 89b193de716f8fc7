#pragma once

#include <optional>
#include <span>
#include <vector>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/plans/training_plan.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {

// Floating-point operations of an iteration on all GPUs, a multiply-add being two.
//
// `model` counts the model itself: three times the products of a forward pass, including
// logits and routers, and attention on the causal half or the window of a query, without
// recomputation (the convention of Megatron-Bridge and of the Llama 3 report). `hardware`
// adds the forward products that recomputation runs again.
struct IterationFlops {
  double model = 0;
  double hardware = 0;
};
IterationFlops CountIterationFlops(const TrainingJob& job);

// All predictions for a job.
struct TrainingReport {
  TrainingJob job = {};
  StepTime time = {};
  StepMemory memory = {};
  std::vector<StageContent> stages = {};
  IterationFlops flops = {};
  std::optional<TrainingPlan> plan = {};  // if the strategy has one

  double Tokens() const;  // the tokens of an iteration
  double TokensPerGpuSecond() const;
  double ModelUtilisation() const;  // relative to the peak of bf16 products
  double HardwareUtilisation() const;
  // Returns the stage with the highest peak (FullestStage), or whether that is within
  // `budget` bytes (Fits).
  size_t FullestStage() const;
  bool Fits(double budget) const;
  // Returns the GPU hours of training on `tokens` tokens.
  double GpuHours(double tokens) const;
};

// Reports on a job, whose `strategy.microbatch` must be set. Throws InputError if the GPU
// lacks the precision. A plan is made for `budget` bytes, or for what the GPU offers PyTorch,
// and is checked: throws std::logic_error if it is wrong.
TrainingReport ReportOfTraining(const TrainingJob& job,
                                std::optional<double> budget = {});

// Reports on a job with a plan whose choices were made before; checks it, too.
TrainingReport ReportOfChoices(const TrainingJob& job, double budget,
                               std::span<const PolicyChoice> choices);

}  // namespace acplan::costmodel
