#include "costmodel/training/training_report.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/layer/tower_operations.h"
#include "costmodel/training/memory/memory_limit.h"
#include "costmodel/training/plans/training_plan_check.h"

namespace acplan::costmodel {
namespace {

struct ForwardFlops {
  double all = 0;
  double recomputation = 0;  // the part of all that recomputation runs again

  ForwardFlops operator*(double count) const {
    return {all * count, recomputation * count};
  }
  ForwardFlops& operator+=(const ForwardFlops& other) {
    all += other.all;
    recomputation += other.recomputation;
    return *this;
  }
};

ForwardFlops FlopsOf(const std::vector<LayerOperation>& operations,
                     const TrainingStrategy& strategy) {
  ForwardFlops flops;
  for (const LayerOperation& operation : operations) {
    const MatrixProduct& p = operation.product;
    const double forward =
        operation.share * (2 * p.rows * p.columns * p.inner * p.groups +
                           operation.attention_flops);
    flops.all += forward;
    flops.recomputation += RecomputedShare(operation, strategy) * forward;
  }
  return flops;
}

// Returns the FLOPs of one layer: the mean over layers with and without a window.
ForwardFlops LayerFlops(const ModelShape& shape, const TrainingStrategy& s,
                        bool is_moe) {
  const ForwardFlops full =
      FlopsOf(LayerOperations(shape, s, {.is_moe = is_moe}), s);
  if (shape.sliding_window == 0) return full;
  const double share = shape.FullShare();
  ForwardFlops flops = full * share;
  flops += FlopsOf(LayerOperations(shape, s,
                                   {.is_moe = is_moe, .is_windowed = true}),
                   s) *
           (1 - share);
  return flops;
}

// Returns the FLOPs of the towers for a sequence, in all passes. A frozen part has no backward
// pass.
ForwardFlops TowerFlops(const TrainingJob& job) {
  ForwardFlops flops;
  for (const Tower& tower : job.shape.towers) {
    if (!RunsTowers(job)) continue;
    const TrainingJob layers = JobOfTower(job, tower);
    const TrainingStrategy& s = layers.strategy;
    const double stack_passes = TrainsTowers(job.strategy) ? 3 : 1;
    const double projector_passes = TrainsProjectors(job.strategy) ? 3 : 1;
    ForwardFlops stack = LayerFlops(layers.shape, s, false) *
                         static_cast<double>(tower.stack->layers);
    if (!TrainsTowers(job.strategy)) stack.recomputation = 0;
    flops.recomputation += stack.recomputation;
    flops.all +=
        stack_passes *
            (stack.all + FlopsOf(PatchOperations(job, tower), s).all) +
        projector_passes * FlopsOf(ProjectorOperations(job, tower), s).all;
  }
  return flops;
}

// Returns the recomputed FLOPs of an iteration, from those of a microbatch on a rank of
// each stage.
double FlopsAgain(const TrainingJob& job, const TrainingPlan& plan) {
  double sum = 0;
  for (const PlannedStage& stage : plan.stages) sum += stage.flops;
  return sum * static_cast<double>(job.strategy.Microbatches()) *
         static_cast<double>(job.strategy.gpus / job.strategy.pipeline);
}

TrainingReport ReportOfPlan(const TrainingJob& job, double budget,
                            TrainingPlan plan) {
  if (const auto error = FindTrainingPlanError(job, budget, plan)) {
    throw std::logic_error("a plan of recomputation does not hold: " + *error);
  }
  TrainingReport report{.job = job,
                        .time = plan.time,
                        .memory = plan.Memory(),
                        .stages = DivideLayers(job),
                        .flops = CountIterationFlops(job)};
  report.flops.hardware += FlopsAgain(job, plan);
  report.plan = std::move(plan);
  return report;
}

}  // namespace

IterationFlops CountIterationFlops(const TrainingJob& job) {
  // The cost of a sequence does not depend on the way in which it is spread.
  TrainingStrategy one = job.strategy;
  one.gpus = one.tensor = one.pipeline = one.chunks = one.context = one.expert =
      1;
  one.sequence_parallel = false;
  one.microbatch = 1;
  one.attention = AttentionKernel::kFlash;
  const ModelShape& shape = job.shape;
  const int64_t layers = shape.layers + shape.mtp_layers;
  const int64_t moe = shape.IsMoe() ? shape.MoeLayers() + shape.mtp_layers : 0;
  ForwardFlops flops;
  if (moe < layers) {
    flops += LayerFlops(shape, one, false) * static_cast<double>(layers - moe);
  }
  if (moe > 0) flops += LayerFlops(shape, one, true) * static_cast<double>(moe);
  if (one.full_layers > 0 || one.every_layers > 0) {
    int64_t recomputed_layers = 0;
    for (const StageContent& stage : DivideLayers(job)) {
      recomputed_layers += RecomputedLayers(one, stage.Layers());
    }
    flops.recomputation *=
        std::min(1.0, static_cast<double>(recomputed_layers) /
                          static_cast<double>(layers));
  }
  flops.all += FlopsOf(LogitsOperations(shape, one), one).all *
               static_cast<double>(1 + shape.mtp_layers);
  const double sequences = static_cast<double>(job.strategy.global_batch);
  // Frozen weights have no gradient.
  const double passes = one.lora_rank > 0 ? 2 : 3;
  const ForwardFlops towers =
      TowerFlops({.shape = shape, .strategy = one, .cluster = job.cluster});
  const double model = passes * flops.all + towers.all;
  return {model * sequences,
          (model + flops.recomputation + towers.recomputation) * sequences};
}

double TrainingReport::Tokens() const {
  return static_cast<double>(job.strategy.global_batch) *
         static_cast<double>(job.strategy.sequence);
}

double TrainingReport::TokensPerGpuSecond() const {
  return Tokens() / time.Total() / static_cast<double>(job.strategy.gpus);
}

double TrainingReport::ModelUtilisation() const {
  return flops.model / time.Total() / static_cast<double>(job.strategy.gpus) /
         job.cluster.gpu.bf16_rate;
}

double TrainingReport::HardwareUtilisation() const {
  return ModelUtilisation() * flops.hardware / flops.model;
}

size_t TrainingReport::FullestStage() const {
  const auto most =
      std::max_element(memory.stages.begin(), memory.stages.end(),
                       [](const RankMemory& a, const RankMemory& b) {
                         return a.Total() < b.Total();
                       });
  return static_cast<size_t>(most - memory.stages.begin());
}

bool TrainingReport::Fits(double budget) const {
  const double rounding = plan ? kByteRounding : 0;
  return memory.stages[FullestStage()].Total() <= budget + rounding;
}

double TrainingReport::GpuHours(double tokens) const {
  return tokens / TokensPerGpuSecond() / 3600;
}

TrainingReport ReportOfTraining(const TrainingJob& job,
                                std::optional<double> budget) {
  if (job.strategy.recomputation == Recomputation::kPlan) {
    RequirePrecision(job);
    const double bytes =
        budget.value_or(PyTorchBytes(LimitOfGpu(job.cluster.gpu), job));
    return ReportOfPlan(job, bytes, PlanTraining(job, bytes));
  }
  TrainingReport report{.job = job,
                        .time = PredictStepTime(job),
                        .memory = PredictStepMemory(job),
                        .stages = DivideLayers(job)};
  report.flops = CountIterationFlops(job);
  return report;
}

TrainingReport ReportOfChoices(const TrainingJob& job, double budget,
                               std::span<const PolicyChoice> choices) {
  return ReportOfPlan(job, budget, PlanOfChoices(job, choices));
}

}  // namespace acplan::costmodel
