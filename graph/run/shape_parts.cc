#include "graph/run/shape_parts.h"

#include <algorithm>
#include <cstddef>

namespace acplan::graph {
namespace {

// Returns the gradients that the backward pass has completed before each step, the last entry
// after all.
IndexedVector<StepId, std::vector<StorageId>> ReadyGradients(
    const LivedStep& step, const Trace& trace) {
  IndexedVector<StepId, std::vector<StorageId>> ready(step.steps.size() + 1);
  if (!trace.model_tensors) return ready;
  std::vector<StepId> step_at(trace.operators.size() + 1, StepId{0});
  for (const StepId k : step.steps.ids()) {
    const Simulation::Step& ran = step.steps[k];
    if (ran.redone == kNone) step_at[EndOf(ran.op)] = Next(k);
  }
  for (const ReadyGradient& gradient : trace.model_tensors->gradients) {
    ready[step_at[gradient.ready]].push_back(gradient.storage);
  }
  return ready;
}

}  // namespace

LifeEvents::LifeEvents(const LivedStep& step, const Trace& trace)
    : begins(step.steps.size() + 1), ends(step.steps.size() + 1) {
  const StepId steps = step.steps.end_id();
  for (const LifeId k : step.lives.ids()) {
    const Life& life = step.lives[k];
    const TraceStorage& storage = trace.storages[life.storage];
    const bool is_original = k == OriginalLife(life.storage);
    if (storage.bytes == 0 || life.begin >= steps) continue;
    const bool is_there_before = is_original && storage.born == kNone;
    if (!is_there_before) begins[life.begin].push_back(k);
    const bool outlives = is_original && storage.freed == kNever;
    if (outlives && life.end >= steps) continue;
    const StepId first_end = is_there_before ? StepId{0} : Next(life.begin);
    ends[std::clamp(life.end, first_end, steps)].push_back(k);
  }
}

ModelResults::ModelResults(const Trace& trace) {
  const auto root =
      std::ranges::find(trace.calls, ModuleId{0}, &TraceCall::module);
  if (root == trace.calls.end()) return;
  end = StepId{root->end};
  for (const StorageId s : root->outputs) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born != kNone && storage.bytes > 0) storages.push_back(s);
  }
  for (const SavedTensor& saved : trace.saved) {
    const bool is_inside = saved.packed <= root->end && Has(saved.storage);
    if (is_inside) saved_inside.push_back(saved.storage);
  }
}

bool ModelResults::Has(StorageId storage) const {
  return std::ranges::find(storages, storage) != storages.end();
}

bool ModelResults::IsSavedInside(StorageId storage) const {
  return std::ranges::find(saved_inside, storage) != saved_inside.end();
}

ShapeParts::ShapeParts(const RunShape& shape)
    : trace(*shape.trace),
      step(*shape.step),
      is_evaluation(shape.is_evaluation),
      places(FindPlaces(trace)),
      lasting(FindLasting(trace, places)),
      lives(step, trace),
      ready(ReadyGradients(step, trace)),
      results(trace),
      block_of_life(step.lives.size(), kNotAllocated) {
  while (update < step.steps.end_id() && !IsOfUpdate(step.steps[update])) {
    update = Next(update);
  }
  while (backward < update && IsOfForward(step.steps[backward])) {
    backward = Next(backward);
  }
  if (places.first_of_state == kNone && update < step.steps.end_id()) {
    places.first_of_state = step.steps[update].op;
  }
}

std::vector<int32_t> TakeInputs(ShapeParts& shape) {
  std::vector<int32_t> blocks;
  for (const StorageId s : shape.places.inputs) {
    const int32_t block =
        std::exchange(shape.block_of_life[OriginalLife(s)], kNotAllocated);
    if (block != kNotAllocated) blocks.push_back(block);
  }
  return blocks;
}

std::vector<int32_t> HandOver(ShapeParts& from, ShapeParts& to) {
  std::vector<int32_t> without_place;
  const auto hand = [&](const std::vector<StorageId>& of_from,
                        const std::vector<StorageId>& of_to) {
    for (size_t k = 0; k < of_from.size(); ++k) {
      const int32_t block = std::exchange(
          from.block_of_life[OriginalLife(of_from[k])], kNotAllocated);
      if (block == kNotAllocated) continue;
      if (k < of_to.size()) {
        to.block_of_life[OriginalLife(of_to[k])] = block;
      } else {
        without_place.push_back(block);
      }
    }
  };
  hand(from.lasting.states, to.lasting.states);
  hand(from.lasting.remnants, to.lasting.remnants);
  return without_place;
}

std::vector<std::pair<StorageId, int32_t>> BlocksOf(const ShapeParts& shape) {
  std::vector<std::pair<StorageId, int32_t>> blocks;
  for (const StorageId s : shape.trace.storages.ids()) {
    const int32_t block = shape.block_of_life[OriginalLife(s)];
    if (block != kNotAllocated) blocks.emplace_back(s, block);
  }
  return blocks;
}

}  // namespace acplan::graph
