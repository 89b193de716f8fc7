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
// `model` counts what the model is: three times the products of a forward pass,
// logits and routers with them, attention on the causal half or the window of a
// query, nothing that is recomputed (the convention of Megatron-Bridge and of the
// Llama 3 report). `hardware` adds the forward products that recomputation runs
// again.
struct IterationFlops {
  double model = 0;
  double hardware = 0;
};
IterationFlops CountIterationFlops(const TrainingJob& job);

// All that the model says of a job.
struct TrainingReport {
  TrainingJob job = {};
  StepTime time = {};
  StepMemory memory = {};
  std::vector<StageContent> stages = {};
  IterationFlops flops = {};
  std::optional<TrainingPlan> plan = {};  // where the strategy is to have one

  double Tokens() const;  // of an iteration
  double TokensPerGpuSecond() const;
  double ModelUtilisation() const;  // of the peak of bf16 products
  double HardwareUtilisation() const;
  // The stage that holds most, and whether that is within `budget` bytes.
  size_t FullestStage() const;
  bool Fits(double budget) const;
  // Of training on so many tokens.
  double GpuHours(double tokens) const;
};

// `job.strategy.microbatch` must be set. Throws InputError where the GPU lacks the
// precision. A plan is made for `budget` bytes of a GPU, or what it has, and is
// checked: std::logic_error where it does not hold.
TrainingReport ReportOfTraining(const TrainingJob& job,
                                std::optional<double> budget = {});

// The same of a plan whose choices were made before, checked too.
TrainingReport ReportOfChoices(const TrainingJob& job, double budget,
                               std::span<const PolicyChoice> choices);

}  // namespace acplan::costmodel
