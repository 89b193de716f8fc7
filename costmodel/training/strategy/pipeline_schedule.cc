#include "costmodel/training/strategy/pipeline_schedule.h"

#include <algorithm>
#include <cmath>

namespace acplan::costmodel {

namespace {

// Returns the seconds that a stage adds to the bubble if it is not the one that waits.
double WaitFor(PipelineSchedule schedule, const ScheduledStages& stage) {
  switch (schedule) {
    case PipelineSchedule::kZeroBubble:
      return stage.total - 2 * stage.weights;
    case PipelineSchedule::kZeroBubbleV:
      return stage.total - 3 * stage.weights;
    case PipelineSchedule::kDualPipe:
      return stage.total + stage.backward - 3 * stage.weights;
    default:
      return stage.total;
  }
}

// Returns the seconds that the slowest stage waits in all passes of V-Min, where forward
// passes and both kinds of gradients take turns: each turn takes as long as the longest of
// the three on any stage.
double TurnSeconds(const TrainingStrategy& strategy,
                   const std::vector<ScheduledStages>& stages) {
  double turn = 0;
  double busy = 0;
  for (const ScheduledStages& stage : stages) {
    const double forward = stage.total - stage.backward;
    turn = std::max(
        {turn, forward, stage.backward - stage.weights, stage.weights});
    busy = std::max(busy, stage.total);
  }
  return PassesOfStage(strategy) * std::max(0.0, 3 * turn - busy);
}

}  // namespace

double BubbleSeconds(const TrainingStrategy& strategy,
                     const std::vector<ScheduledStages>& stages) {
  double sum = 0;
  double longest = 0;
  for (const ScheduledStages& stage : stages) {
    const double wait = std::max(0.0, WaitFor(strategy.schedule, stage));
    sum += stage.count * wait;
    longest = std::max(longest, wait);
  }
  const double pipeline = static_cast<double>(strategy.pipeline);
  if (strategy.schedule == PipelineSchedule::kDualPipe) {
    // A stage here has two of the parts in the formula.
    return (pipeline / 2 - 1) * sum / (2 * pipeline);
  }
  if (strategy.schedule == PipelineSchedule::kMinV) {
    return (sum - longest) * 2 / 3 + TurnSeconds(strategy, stages);
  }
  return (sum - longest) / static_cast<double>(strategy.chunks);
}

double PassesOfStage(const TrainingStrategy& strategy) {
  const double microbatches = static_cast<double>(strategy.Microbatches());
  return strategy.schedule == PipelineSchedule::kDualPipe ? microbatches / 2
                                                          : microbatches;
}

double MicrobatchesInFlight(const TrainingStrategy& s, size_t index) {
  const double pipeline = static_cast<double>(s.pipeline);
  const double after = pipeline - 1 - static_cast<double>(index);
  const double passes = PassesOfStage(s);
  if (s.schedule == PipelineSchedule::kZeroBubbleV) {
    return std::min(passes, pipeline);
  }
  if (s.schedule == PipelineSchedule::kHalfV) {
    return std::min(passes, std::floor((pipeline + 2) / 2));
  }
  if (s.schedule == PipelineSchedule::kMinV) {
    return std::min(passes, std::floor((pipeline + 4) / 3));
  }
  if (s.schedule == PipelineSchedule::kDualPipe) {
    return std::min(passes, (pipeline + 1) / 2);
  }
  if (s.chunks == 1) return std::min(passes, after + 1);
  const double chunks = static_cast<double>(s.chunks);
  const double in_flight = 2 * after + (chunks - 1) * pipeline + 1;
  return std::min(passes, in_flight / chunks);
}

}  // namespace acplan::costmodel
