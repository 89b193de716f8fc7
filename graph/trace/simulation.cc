#include "graph/trace/simulation.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"
#include "graph/trace/frames.h"
#include "graph/trace/lifetimes.h"
#include "graph/trace/moved_storages.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/rerun_refusal.h"
#include "graph/trace/stand_ins.h"
#include "graph/trace/step_layout.h"

// A simulation makes five values, each from those before it:
//   Frames       the calls of units: when each runs again, and up to where;
//                what is only a stand-in then
//   StepLayout   the order of all that runs, and the way from times to steps
//   moved        what is offloaded, and when it goes and comes back
//   lives        the steps during which each storage is in use: the original,
//                and what reruns make of it
//   Simulation   the sum of the lives at each step
// What no plan changes is found once, in PreparedTrace. But for policies and
// frames inside of others, the time is linear in what runs and what that
// creates.
//
// A worked step (TwoLayers in tests/graph/simulation_test.cc; in units of 512
// bytes). Layer a makes its product (operator 0), a temporary (1) and its
// result (2); layer b likewise (3, 4, 5). Operator 6 is the loss, 7 the
// backward of b, 8 that of a. Autograd saves all products and results, a's
// result twice: as such, and as the argument of b. Without units:
//
//   step            0   1   2   3   4   5   6   7   8
//   input           1   1   1   1   1   1   1   1   1
//   a: product      8   8   8   8   8   8   8   8   8
//   a: temporary        4
//   a: result               2   2   2   2   2   2   2
//   b: product                 16  16  16  16  16
//   b: temporary                    4
//   b: result                           2   2   2
//   loss                                    1   1   1
//   all             9  13  11  27  31  29  30  30  12
//
// With both layers as units, and no policies, autograd saves nothing in the
// forward pass. Backward asks for b's product at time 7, so the operators [3,
// 6) run again there; for a's product at time 8, so [0, 3) do. Steps that run
// again are primed:
//
//   step            0   1   2   3   4   5   6  3'  4'  5'   7  0'  1'  2'   8
//   input           1   1   1   1   1   1   1   1   1   1   1   1   1   1   1
//   a: product      8   8                                       8   8   8   8
//   a: temporary        4                                           4
//   a: result               2   2   2   2   2   2   2   2   2           2   2
//   b: product                 16  16          16  16  16  16
//   b: temporary                    4               4
//   b: result                           2   2           2   2
//   loss                                    1   1   1   1   1   1   1   1   1
//   all             9  13   3  19  23   5   6  20  24  22  22  10  14  12  12
//
// The program lets go of a product once the temporary is made from it. The
// result of a lives on: frame b holds its argument until autograd lets go of
// all that b saves, at time 8, which is before step 0'. What a rerun makes is a
// life of its own: b's product has one before the loss, and one from step 3' on
// until the backward of b has used it.

namespace acplan::graph {
namespace {

// The steps [first, second) of a step of so many. A storage is there while the
// operator runs that creates it.
std::pair<int32_t, int32_t> StepsOf(const Life& life, int32_t steps) {
  const int32_t begin = std::min(life.begin, steps);
  return {begin, std::clamp(life.end, std::min(begin + 1, steps), steps)};
}

bool IsLiveAt(const Life& life, int32_t step, int32_t steps) {
  const auto [begin, end] = StepsOf(life, steps);
  return begin <= step && step < end;
}

Simulation SumUp(const std::vector<Life>& lives, StepLayout layout,
                 const Trace& trace) {
  const int32_t steps = layout.StepCount();
  Simulation result;
  result.steps = std::move(layout.steps);
  result.recompute_ms = layout.recompute_ms;
  std::vector<int64_t> change(steps + 1, 0);
  for (const Life& life : lives) {
    const auto [begin, end] = StepsOf(life, steps);
    const int64_t bytes = AllocatedBytes(trace.storages[life.storage].bytes);
    change[begin] += bytes;
    change[end] -= bytes;
  }
  int64_t live = 0;
  result.live_bytes.reserve(steps);
  for (int32_t k = 0; k < steps; ++k) {
    live += change[k];
    result.live_bytes.push_back(live);
    if (live > result.peak_bytes || k == 0) {
      result.peak_bytes = live;
      result.peak_step = k;
    }
  }
  for (const Life& life : lives) {
    if (IsLiveAt(life, result.peak_step, steps)) {
      const TraceStorage& storage = trace.storages[life.storage];
      result.peak_by_category[static_cast<size_t>(storage.category)] +=
          AllocatedBytes(storage.bytes);
    }
  }
  return result;
}

// `originals`: how many of the lives, from the first, no rerun made.
std::vector<LiveBytes> SumUpByKind(const std::vector<Life>& lives,
                                   size_t originals, int32_t steps,
                                   const Trace& trace) {
  std::vector<LiveBytes> by_kind(static_cast<size_t>(steps) + 1);
  for (size_t k = 0; k < lives.size(); ++k) {
    const auto [begin, end] = StepsOf(lives[k], steps);
    const TraceStorage& storage = trace.storages[lives[k].storage];
    const size_t kind =
        k < originals ? static_cast<size_t>(storage.category) : kRecomputedKind;
    by_kind[begin][kind] += AllocatedBytes(storage.bytes);
    by_kind[end][kind] -= AllocatedBytes(storage.bytes);
  }
  for (int32_t k = 1; k < steps; ++k) {
    for (size_t kind = 0; kind < kLiveKinds; ++kind) {
      by_kind[k][kind] += by_kind[k - 1][kind];
    }
  }
  by_kind.resize(steps);
  return by_kind;
}

// Views of stand-ins are skipped. Throws InputError where something computes
// with one.
void HandOutStandIns(Frames& frames, const PreparedTrace& prepared) {
  std::optional<StandInFinder> finder;
  for (int32_t f = 0; f < std::ssize(frames.list); ++f) {
    Frame& frame = frames.list[f];
    if (!frame.has_stand_ins || frame.rerun_time == kNever) continue;
    if (!finder) finder.emplace(frames, prepared);
    const StandIns found = finder->Of(f);
    if (found.refusal) throw InputError(*found.refusal);
    if (found.hollow_views.empty()) continue;
    frame.own_decisions = frame.unit->decisions;
    for (const int32_t op : found.hollow_views) {
      frame.own_decisions[op - frame.call->start] = OperatorDecision::kSkip;
    }
    frame.decisions = frame.own_decisions.data();
  }
}

// A planned step before it is summed up.
struct SimulatedStep {
  StepLayout layout;
  std::vector<Life> lives = {};
  size_t moved = 0;  // of the lives: those that come back from the host
  OffloadUse offload = {};
};

SimulatedStep LiveThrough(const PreparedTrace& prepared,
                          const std::vector<CheckpointedModule>& modules) {
  Frames frames = MakeFrames(prepared, modules);
  for (const Frame& frame : frames.list) {
    if (const std::optional<std::string> refusal =
            RerunRefusal(frame, prepared)) {
      throw InputError(*refusal);
    }
  }
  HandOutStandIns(frames, prepared);
  SimulatedStep step{.layout = LayOutSteps(prepared, frames.list)};
  const std::vector<MovedStorage> moved =
      FindMovedStorages(prepared, frames, step.layout);
  step.lives = FindLives(prepared, frames, step.layout, moved);
  step.moved = moved.size();
  step.offload = UseOf(moved, prepared, frames, step.layout);
  for (size_t k = 0; k < moved.size(); ++k) {
    const Life& original = step.lives[moved[k].storage];
    const Life& fetched = step.lives[prepared.trace->storages.size() + k];
    OffloadedStorage& use = step.offload.storages[k];
    use.away_begin = std::max(original.end, original.begin + 1);
    use.away_end = moved[k].fetch ? moved[k].fetch->step : fetched.end;
  }
  return step;
}

Simulation SumUpStep(const PreparedTrace& prepared, SimulatedStep step) {
  Simulation result =
      SumUp(step.lives, std::move(step.layout), *prepared.trace);
  result.offload = std::move(step.offload);
  return result;
}

std::vector<LiveStorage> LiveAt(int32_t at, const PreparedTrace& prepared,
                                const SimulatedStep& step) {
  const Trace& trace = *prepared.trace;
  const size_t originals = trace.storages.size();
  std::vector<LiveStorage> live;
  for (size_t k = 0; k < step.lives.size(); ++k) {
    const Life& life = step.lives[k];
    if (!IsLiveAt(life, at, step.layout.StepCount())) continue;
    const bool is_original = k < originals;
    const bool is_fetched = !is_original && k < originals + step.moved;
    const int32_t held = step.layout.StepAt(prepared.held[life.storage]);
    const int32_t scope_end =
        step.layout.StepAt(trace.storages[life.storage].scope_end);
    live.push_back({.storage = life.storage,
                    .is_remade = !is_original && !is_fetched,
                    .is_fetched = is_fetched,
                    .is_held_by_program = is_original && held > at,
                    .is_kept = is_original &&
                               life.end > std::max(scope_end, life.begin + 1)});
  }
  return live;
}

}  // namespace

std::vector<int32_t> HeldByOthers(const Trace& trace) {
  // Until when the trace knows a holder.
  std::vector<int32_t> explained(trace.storages.size(), 0);
  for (const SavedTensor& saved : trace.saved) {
    explained[saved.storage] =
        std::max(explained[saved.storage], HeldByAutogradUntil(saved));
  }
  std::vector<int32_t> held;
  held.reserve(trace.storages.size());
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_of_forward =
        storage.born >= 0 && storage.born < trace.forward_end;
    const bool is_held_by_something_unseen =
        std::max(storage.scope_end, explained[s]) < storage.freed;
    held.push_back(is_of_forward && !is_held_by_something_unseen
                       ? std::min(storage.scope_end, storage.freed)
                       : storage.freed);
  }
  return held;
}

Simulation Simulate(const Trace& trace,
                    const std::vector<CheckpointedModule>& modules) {
  return Simulator(trace).Simulate(modules);
}

Simulator::Simulator(const Trace& trace)
    : prepared_(std::make_shared<const PreparedTrace>(trace)) {}

Simulation Simulator::Simulate(
    const std::vector<CheckpointedModule>& modules) const {
  return SumUpStep(*prepared_, LiveThrough(*prepared_, modules));
}

LivedStep Simulator::Live(
    const std::vector<CheckpointedModule>& modules) const {
  SimulatedStep step = LiveThrough(*prepared_, modules);
  return {.steps = std::move(step.layout.steps),
          .lives = std::move(step.lives)};
}

DetailedSimulation Simulator::SimulateInDetail(
    const std::vector<CheckpointedModule>& modules) const {
  SimulatedStep step = LiveThrough(*prepared_, modules);
  const Trace& trace = *prepared_->trace;
  std::vector<LiveBytes> by_kind =
      SumUpByKind(step.lives, trace.storages.size() + step.moved,
                  step.layout.StepCount(), trace);
  return {.simulation = SumUpStep(*prepared_, std::move(step)),
          .by_kind = std::move(by_kind)};
}

SimulatedPeak Simulator::SimulatePeak(
    const std::vector<CheckpointedModule>& modules,
    const std::function<Simulation(Simulation)>& change) const {
  const SimulatedStep step = LiveThrough(*prepared_, modules);
  SimulatedPeak found{.simulation = SumUpStep(*prepared_, step), .live = {}};
  if (change) found.simulation = change(std::move(found.simulation));
  found.live = LiveAt(found.simulation.peak_step, *prepared_, step);
  return found;
}

}  // namespace acplan::graph
