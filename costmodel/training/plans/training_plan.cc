// An iteration takes microbatches x slowest stage + (sum of stages - slowest) x a share of
// at most 1, and time that does not depend on recomputation. There is at least one
// microbatch, so this rises with the seconds of each stage, whatever those of the others
// are: stages are chosen one by one.
#include "costmodel/training/plans/training_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "costmodel/training/strategy/pipeline_schedule.h"

namespace acplan::costmodel {
namespace {

PlannedLayer LayerToPlan(const TrainingJob& job, bool is_moe,
                         std::span<const KnownStructure> known_structures) {
  PlannedLayer layer{.graph = GraphOfLayer(job, is_moe)};
  const auto same =
      std::ranges::find_if(known_structures, [&](const KnownStructure& k) {
        return IsSameStructure(k.graph, layer.graph);
      });
  layer.policies =
      PoliciesOfLayer(layer.graph, same != known_structures.end()
                                       ? same->sets
                                       : SetsOfPolicies(layer.graph));
  layer.gpu_hull = LowerHull(layer.policies, 1);
  layer.host_hull = LowerHull(layer.policies, 0);
  layer.offer = {.policies = layer.policies,
                 .gpu_hull = layer.gpu_hull,
                 .host_hull = layer.host_hull,
                 .whole_bytes = layer.graph.WholeBytes()};
  return layer;
}

PolicyChoice SmallestChoice(const std::array<LayerOffer, 2>& offers) {
  PolicyChoice choice{.bound = std::numeric_limits<double>::infinity()};
  for (size_t kind = 0; kind < 2; ++kind) {
    if (offers[kind].layers == 0) continue;
    choice.counts[kind].assign(offers[kind].policies.size(), 0);
    choice.counts[kind].front() = offers[kind].layers;
  }
  return choice;
}

void AddShare(PlannedStage& stage, const LayerGraph& graph,
              const LayerShare& share) {
  const double number = static_cast<double>(share.layers);
  for (OperationSet rest = share.policy.sets.runs; rest != 0;
       rest &= rest - 1) {
    const GraphOperation& operation = graph.operations[std::countr_zero(rest)];
    stage.recomputation += operation.forward * number;
    stage.flops += operation.flops * number;
  }
  stage.keeping.kept_bytes += number * share.policy.bytes;
  stage.shares.push_back(share);
}

std::vector<StageKind> EachStage(std::span<const PlannedStage> stages) {
  std::vector<StageKind> kinds;
  for (size_t i = 0; i < stages.size(); ++i) {
    kinds.push_back({stages[i].content, i, 1});
  }
  return kinds;
}

TrainingPlan PlanWith(const TrainingJob& job, const PlannedLayers& layers,
                      std::span<const PolicyChoice> choices) {
  TrainingPlan plan{.graphs = {layers[0].graph, layers[1].graph}};
  const std::vector<StageContent> stages = DivideLayers(job);
  for (size_t i = 0; i < stages.size(); ++i) {
    plan.stages.push_back(
        StageWithChoice(job, layers, stages[i], i, choices[i]));
  }
  const UnitTimes units = TimesOfUnits(job);
  plan.time = TimeOfPlan(job, units, plan.stages);
  plan.bound = plan.IsOptimal() ? plan.time.Total()
                                : BoundOfPlan(job, units, plan.stages).Total();
  return plan;
}

}  // namespace

PlannedLayers LayersToPlan(const TrainingJob& job,
                           std::span<const KnownStructure> known_structures) {
  PlannedLayers layers;
  if (!job.shape.IsMoe() || job.shape.dense_layers > 0) {
    layers[0] = LayerToPlan(job, false, known_structures);
  }
  if (job.shape.IsMoe()) layers[1] = LayerToPlan(job, true, known_structures);
  return layers;
}

std::array<LayerOffer, 2> OffersOfStage(const PlannedLayers& layers,
                                        const StageContent& stage) {
  std::array<LayerOffer, 2> offers = {layers[0].offer, layers[1].offer};
  offers[0].layers = stage.dense_layers;
  offers[1].layers = stage.moe_layers;
  return offers;
}

StageRoom RoomOfStage(const TrainingJob& job, const StageContent& stage,
                      size_t index, double budget) {
  const RankMemory empty = MemoryOfKeeping(job, stage, index, {});
  const double others = empty.Total() - empty.OfUpdate() - empty.logits;
  // If an update does not fit, no plan does.
  const bool fits_update = empty.Resting() + empty.update <= budget;
  return {.in_flight = MicrobatchesInFlight(job.strategy, index),
          .bytes = fits_update ? budget - others : -1,
          .logits = empty.logits};
}

PlannedStage StageWithChoice(const TrainingJob& job,
                             const PlannedLayers& layers,
                             const StageContent& stage, size_t index,
                             const PolicyChoice& choice) {
  PlannedStage planned_stage{.content = stage,
                             .fits = choice.is_feasible,
                             .is_optimal = choice.is_optimal,
                             .bound = choice.bound};
  for (size_t kind = 0; kind < 2; ++kind) {
    double most = 0;
    for (size_t i = 0; i < choice.counts[kind].size(); ++i) {
      const int64_t count = choice.counts[kind][i];
      if (count == 0) continue;
      const LayerPolicy& policy = layers[kind].policies[i];
      AddShare(planned_stage, layers[kind].graph, {kind == 1, policy, count});
      most = std::max(most, policy.bytes);
    }
    if (most == 0) continue;
    planned_stage.keeping.recomputed_bytes =
        std::max(planned_stage.keeping.recomputed_bytes,
                 layers[kind].offer.whole_bytes - most);
  }
  planned_stage.memory =
      MemoryOfKeeping(job, stage, index, planned_stage.keeping);
  return planned_stage;
}

StepTime TimeOfPlan(const TrainingJob& job, const UnitTimes& units,
                    std::span<const PlannedStage> stages) {
  std::vector<PassTime> recomputation;
  for (const PlannedStage& stage : stages)
    recomputation.push_back(stage.recomputation);
  return CombineStepTime(job, units, EachStage(stages), recomputation);
}

StepTime BoundOfPlan(const TrainingJob& job, const UnitTimes& units,
                     std::span<const PlannedStage> stages) {
  std::vector<PassTime> recomputation;
  for (const PlannedStage& stage : stages) {
    recomputation.push_back({.compute = stage.bound});
  }
  return CombineStepTime(job, units, EachStage(stages), recomputation);
}

bool TrainingPlan::Fits() const {
  return std::ranges::all_of(stages, &PlannedStage::fits);
}

bool TrainingPlan::IsOptimal() const {
  return Fits() && std::ranges::all_of(stages, &PlannedStage::is_optimal);
}

StepMemory TrainingPlan::Memory() const {
  StepMemory memory;
  for (const PlannedStage& stage : stages) {
    memory.stages.push_back(stage.memory);
  }
  return memory;
}

TrainingPlan PlanTraining(const TrainingJob& job, double budget) {
  const PlannedLayers layers = LayersToPlan(job);
  const std::vector<StageContent> stages = DivideLayers(job);
  std::vector<PolicyChoice> choices;
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::array<LayerOffer, 2> offers = OffersOfStage(layers, stages[i]);
    choices.push_back(
        ChooseLayerPolicies(offers, RoomOfStage(job, stages[i], i, budget)));
    if (!choices.back().is_feasible) choices.back() = SmallestChoice(offers);
  }
  return PlanWith(job, layers, choices);
}

TrainingPlan PlanOfChoices(const TrainingJob& job,
                           std::span<const PolicyChoice> choices) {
  return PlanWith(job, LayersToPlan(job), choices);
}

}  // namespace acplan::costmodel
