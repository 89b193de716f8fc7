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
// result of a lives on: frame b holds its argument until autograd lets go of all that
// b saves, at time 8, which is before step 0'. A storage that a rerun makes has a life
// of its own: b's product has one before the loss, and one from step 3' on
// until the backward of b has used it.

namespace acplan::graph {
namespace {

// Returns the steps of a life before the end of all steps. A storage is there while the
// operator runs that creates it.
std::pair<StepId, StepId> StepsOf(const Life& life, StepId all_end) {
  const StepId begin = std::min(life.begin, all_end);
  return {begin, std::clamp(life.end, std::min(Next(begin), all_end), all_end)};
}

bool IsLiveAt(const Life& life, StepId step, StepId all_end) {
  const auto [begin, end] = StepsOf(life, all_end);
  return begin <= step && step < end;
}

Simulation SumUp(const LifeList& lives, StepLayout layout, const Trace& trace) {
  const StepId all_end = layout.EndOfSteps();
  Simulation result;
  result.steps = std::move(layout.steps);
  result.recompute_ms = layout.recompute_ms;
  IndexedVector<StepId, int64_t> change(result.steps.size() + 1, 0);
  for (const Life& life : lives) {
    const auto [begin, end] = StepsOf(life, all_end);
    const int64_t bytes = AllocatedBytes(trace.storages[life.storage].bytes);
    change[begin] += bytes;
    change[end] -= bytes;
  }
  int64_t live = 0;
  result.live_bytes.reserve(result.steps.size());
  for (const StepId k : result.steps.ids()) {
    live += change[k];
    result.live_bytes.push_back(live);
    if (live > result.peak_bytes || k == StepId{0}) {
      result.peak_bytes = live;
      result.peak_step = k;
    }
  }
  for (const Life& life : lives) {
    if (IsLiveAt(life, result.peak_step, all_end)) {
      const TraceStorage& storage = trace.storages[life.storage];
      result.peak_by_category[static_cast<size_t>(storage.category)] +=
          AllocatedBytes(storage.bytes);
    }
  }
  return result;
}

// `first_rerun`: the first of the lives that a rerun made.
IndexedVector<StepId, LiveBytes> SumUpByKind(const LifeList& lives,
                                             LifeId first_rerun, StepId all_end,
                                             const Trace& trace) {
  IndexedVector<StepId, LiveBytes> by_kind(IndexOf(all_end) + size_t{1});
  for (const LifeId k : lives.ids()) {
    const auto [begin, end] = StepsOf(lives[k], all_end);
    const TraceStorage& storage = trace.storages[lives[k].storage];
    const size_t kind = k < first_rerun ? static_cast<size_t>(storage.category)
                                        : kRecomputedKind;
    by_kind[begin][kind] += AllocatedBytes(storage.bytes);
    by_kind[end][kind] -= AllocatedBytes(storage.bytes);
  }
  for (const StepId k : IdRange(StepId{1}, all_end)) {
    for (size_t kind = 0; kind < kLiveKinds; ++kind) {
      by_kind[k][kind] += by_kind[Previous(k)][kind];
    }
  }
  by_kind.pop_back();
  return by_kind;
}

// Views of stand-ins are skipped. Throws InputError where something computes
// with one.
void HandOutStandIns(Frames& frames, const PreparedTrace& prepared) {
  std::optional<StandInFinder> finder;
  for (const FrameId f : frames.list.ids()) {
    Frame& frame = frames.list[f];
    if (!frame.has_stand_ins || frame.rerun_time == kNever) continue;
    if (!finder) finder.emplace(frames, prepared);
    const StandIns stand_ins = finder->Find(f);
    if (stand_ins.refusal) throw InputError(*stand_ins.refusal);
    if (stand_ins.hollow_views.empty()) continue;
    if (frame.own_decisions.empty()) {
      frame.own_decisions = frame.unit->decisions;
    }
    for (const OperatorId op : stand_ins.hollow_views) {
      frame.own_decisions[frame.call->PlaceOf(op)] = OperatorDecision::kSkip;
    }
    frame.decisions = frame.own_decisions.data();
  }
}

// A planned step before it is summed up.
struct SimulatedStep {
  StepLayout layout;
  LifeList lives = {};
  // The first of the lives that come back from the host, and of those after them, which
  // reruns make.
  LifeId first_fetched = {};
  LifeId first_rerun = {};
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
  const MovedStorages moves = FindMovedStorages(prepared, frames, step.layout);
  const size_t originals = prepared.trace->storages.size();
  step.lives = FindLives(prepared, frames, step.layout, moves);
  step.first_fetched = IdAt<LifeId>(originals);
  step.first_rerun = IdAt<LifeId>(originals + moves.size());
  step.offload = UseOf(moves, prepared, frames, step.layout);
  LifeId fetched_life = step.first_fetched;
  for (const MovedId k : moves.ids()) {
    const Life& original = step.lives[OriginalLife(moves[k].storage)];
    const Life& fetched = step.lives[fetched_life];
    OffloadedStorage& use = step.offload.storages[k];
    use.away_begin = std::max(original.end, Next(original.begin));
    use.away_end = moves[k].fetch ? moves[k].fetch->step : fetched.end;
    fetched_life = Next(fetched_life);
  }
  return step;
}

Simulation SumUpStep(const PreparedTrace& prepared, SimulatedStep step) {
  Simulation result =
      SumUp(step.lives, std::move(step.layout), *prepared.trace);
  result.offload = std::move(step.offload);
  return result;
}

std::vector<LiveStorage> LiveAt(StepId at, const PreparedTrace& prepared,
                                const SimulatedStep& step) {
  const Trace& trace = *prepared.trace;
  std::vector<LiveStorage> live;
  for (const LifeId k : step.lives.ids()) {
    const Life& life = step.lives[k];
    if (!IsLiveAt(life, at, step.layout.EndOfSteps())) continue;
    const bool is_original = k < step.first_fetched;
    const bool is_fetched = !is_original && k < step.first_rerun;
    const StepId held_until =
        step.layout.StepAt(prepared.held_until[life.storage]);
    const StepId scope_end =
        step.layout.StepAt(trace.storages[life.storage].scope_end);
    live.push_back(
        {.storage = life.storage,
         .is_remade = !is_original && !is_fetched,
         .is_fetched = is_fetched,
         .is_held_by_program = is_original && held_until > at,
         .is_kept =
             is_original && life.end > std::max(scope_end, Next(life.begin))});
  }
  return live;
}

}  // namespace

IndexedVector<StorageId, Time> HeldByOthers(const Trace& trace) {
  // The times until when the trace knows a holder.
  IndexedVector<StorageId, Time> known_until(trace.storages.size(), 0);
  for (const SavedTensor& saved : trace.saved) {
    known_until[saved.storage] =
        std::max(known_until[saved.storage], HeldByAutogradUntil(saved));
  }
  IndexedVector<StorageId, Time> held_until;
  held_until.reserve(trace.storages.size());
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_of_forward =
        storage.born != kNone && storage.IsOlderThan(trace.forward_end);
    const bool is_held_by_something_unseen =
        std::max(storage.scope_end, known_until[s]) < storage.freed;
    held_until.push_back(is_of_forward && !is_held_by_something_unseen
                             ? std::min(storage.scope_end, storage.freed)
                             : storage.freed);
  }
  return held_until;
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
  IndexedVector<StepId, LiveBytes> by_kind =
      SumUpByKind(step.lives, step.first_rerun, step.layout.EndOfSteps(),
                  *prepared_->trace);
  return {.simulation = SumUpStep(*prepared_, std::move(step)),
          .by_kind = std::move(by_kind)};
}

SimulatedPeak Simulator::SimulatePeak(
    const std::vector<CheckpointedModule>& modules,
    const std::function<Simulation(Simulation)>& change) const {
  const SimulatedStep step = LiveThrough(*prepared_, modules);
  SimulatedPeak peak{.simulation = SumUpStep(*prepared_, step), .live = {}};
  if (change) peak.simulation = change(std::move(peak.simulation));
  peak.live = LiveAt(peak.simulation.peak_step, *prepared_, step);
  return peak;
}

}  // namespace acplan::graph
