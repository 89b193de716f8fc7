#include "problems/offload/movables.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "graph/trace/allocation.h"
#include "graph/trace/link_time.h"
#include "graph/trace/trace_calls.h"
#include "problems/offload/link_queue.h"

// Offloading changes neither the steps nor their order. So one simulation with
// everything offloaded tells, for each storage, when it would go and come, and
// during which steps the device would be without it. The bytes that a choice
// uses are the plan's bytes without those, and its stall follows from the
// events of the chosen storages alone.
//
// The choice is greedy. At the step with the most bytes above the budget, the
// largest movable goes that makes nothing wait, or else the one that makes the
// step wait least for its bytes. More copies never make the step wait less,
// since they only delay later ones. In the end, movables that turned out not to
// be needed stay on the device.

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::MovedId;
using graph::OffloadedStorage;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::StepId;
using graph::StorageId;
using graph::Trace;
using graph::TraceCall;

namespace {

// The number of the largest movables that are compared at a step.
constexpr std::ptrdiff_t kMostCompared = 48;
// Waits that differ by less are equal.
constexpr double kNoWaitMs = 1e-9;

// Returns the storages that an operator of a unit keeps.
std::vector<StorageId> KeptBy(const Trace& trace,
                              const CheckpointedModule& unit,
                              const TraceCall& call, int32_t place) {
  const graph::TraceOperator& op = trace.operators[call.AtPlace(place)];
  const auto kept_results = unit.kept_results.find(place);
  if (kept_results == unit.kept_results.end()) return op.outputs;
  std::vector<StorageId> storages;
  for (const int32_t r : kept_results->second) {
    storages.push_back(trace.tensors[op.results[r]].storage);
  }
  return storages;
}

// Returns the last operator that writes to each storage in place, if any.
graph::IndexedVector<StorageId, OperatorId> LastWrites(const Trace& trace) {
  graph::IndexedVector<StorageId, OperatorId> last(trace.storages.size(),
                                                   graph::kNone);
  for (const OperatorId op : graph::OperatorsIn(0, trace.backward_end)) {
    for (const StorageId s : trace.operators[op].mutates) last[s] = op;
  }
  return last;
}

class Choice {
 public:
  explicit Choice(const OffloadQuestion& question)
      : question_(question),
        own_copies_{.use = UseWithOwnCopies(question)},
        use_(own_copies_.use ? *own_copies_.use : question.moved_run.offload),
        begins_ms_(
            graph::BeginsOfSteps(*question.problem.trace, question.moved_run)),
        live_(question.saved_run.live_bytes),
        queue_(begins_ms_, use_, question.limits.rates) {
    if (own_copies_.use) {
      const graph::IdRange own(question.moved_run.offload.storages.end_id(),
                               use_.storages.end_id());
      queue_.Set({own.begin(), own.end()}, true);
      own_copies_.stall_ms = choice_.stall_ms = queue_.StallMs();
    }
    choice_.is_chosen.assign(question.movables.size(), false);
    waits_.assign(question.movables.size(), false);
  }

  std::optional<OffloadChoice> Find() && {
    for (;;) {
      const auto most = std::ranges::max_element(live_);
      if (most == live_.end() || *most <= question_.budget_bytes) break;
      const std::optional<MovableId> next =
          NextToMove(graph::IdAt<StepId>(most - live_.begin()));
      if (!next) return std::nullopt;
      Move(*next, true);
      const double stall_ms = queue_.StallMs();
      if (stall_ms != choice_.stall_ms) waits_.assign(waits_.size(), false);
      choice_.stall_ms = stall_ms;
    }
    KeepWhatNeedNotGo();
    choice_.stall_ms = queue_.StallMs() - own_copies_.stall_ms;
    return std::move(choice_);
  }

 private:
  // The trace's own copies, which always move.
  struct OwnCopies {
    // The use that includes them; nothing if there are none.
    std::optional<graph::OffloadUse> use;
    double stall_ms = 0;
  };

  static std::optional<graph::OffloadUse> UseWithOwnCopies(
      const OffloadQuestion& question) {
    const Trace& trace = *question.problem.trace;
    if (!graph::HasOwnCopies(trace)) return std::nullopt;
    return graph::WithOwnCopies(trace, question.moved_run);
  }

  int64_t BytesAt(const Movable& movable, StepId step) const {
    int64_t bytes = 0;
    for (const MovedId k : movable.moved_storages) {
      const OffloadedStorage& storage = use_.storages[k];
      if (storage.away_begin <= step && step < storage.away_end) {
        bytes += graph::AllocatedBytes(storage.bytes);
      }
    }
    return bytes;
  }

  // Returns whether the host has room for what moves and a movable.
  bool FitsHostWith(const Movable& movable) const {
    if (question_.limits.host_memory_bytes >= use_.host_peak_bytes) return true;
    const std::vector<MovedId>& more = movable.moved_storages;
    int64_t bytes = 0;
    for (const graph::OffloadEvent& event : use_.events) {
      const bool moves = queue_.Moves(event.storage) ||
                         std::ranges::find(more, event.storage) != more.end();
      const bool is_own =
          event.storage >= question_.moved_run.offload.storages.end_id();
      if (!moves || is_own) continue;
      using enum graph::OffloadEvent::Kind;
      const int64_t of_storage = use_.storages[event.storage].bytes;
      if (event.kind == kSend) bytes += of_storage;
      if (event.kind == kUse || event.kind == kDrop) bytes -= of_storage;
      if (bytes > question_.limits.host_memory_bytes) return false;
    }
    return true;
  }

  // Calls `visit` with each step that runs without a storage of a movable.
  void VisitSteps(const Movable& movable, auto&& visit) {
    for (const MovedId k : movable.moved_storages) {
      const OffloadedStorage& storage = use_.storages[k];
      const StepId end = std::min(storage.away_end, live_.end_id());
      for (const StepId step : graph::IdRange(storage.away_begin, end)) {
        visit(step, graph::AllocatedBytes(storage.bytes));
      }
    }
  }

  void Move(MovableId m, bool moves) {
    const Movable& movable = question_.movables[m];
    queue_.Set(movable.moved_storages, moves);
    choice_.is_chosen[m] = moves;
    VisitSteps(movable, [&](StepId step, int64_t bytes) {
      live_[step] += moves ? -bytes : bytes;
    });
  }

  // Returns the movable that goes next to lower the bytes at a step.
  std::optional<MovableId> NextToMove(StepId step) {
    std::vector<std::pair<int64_t, MovableId>> by_bytes;
    for (const MovableId m : question_.movables.ids()) {
      if (choice_.is_chosen[m]) continue;
      const int64_t bytes = BytesAt(question_.movables[m], step);
      if (bytes > 0) by_bytes.emplace_back(-bytes, m);
    }
    const auto compared = std::min(std::ssize(by_bytes), kMostCompared);
    std::ranges::partial_sort(by_bytes, by_bytes.begin() + compared);
    by_bytes.resize(static_cast<size_t>(compared));
    std::vector<std::pair<int64_t, MovableId>> waiting;
    double least = std::numeric_limits<double>::infinity();
    std::optional<MovableId> next;
    const auto look_at = [&](int64_t negative, MovableId m) {
      const auto bytes = static_cast<double>(-negative);
      // A longer wait changes nothing.
      const double most_ms =
          std::min(question_.most_stall_ms + own_copies_.stall_ms + kNoWaitMs,
                   choice_.stall_ms + std::max(kNoWaitMs, least * bytes));
      const Movable& movable = question_.movables[m];
      const double stall_ms =
          queue_.StallWithMs(movable.moved_storages, most_ms);
      const double more_ms = stall_ms - choice_.stall_ms;
      if (more_ms > kNoWaitMs) waits_[m] = true;
      if (stall_ms > most_ms || !FitsHostWith(movable)) return false;
      if (more_ms <= kNoWaitMs) return true;
      const double share = more_ms / bytes;
      if (share < least) {
        least = share;
        next = m;
      }
      return false;
    };
    for (const auto& [negative, m] : by_bytes) {
      if (waits_[m]) {
        waiting.emplace_back(negative, m);
      } else if (look_at(negative, m)) {
        return m;
      }
    }
    for (const auto& [negative, m] : waiting) look_at(negative, m);
    return next;
  }

  void KeepWhatNeedNotGo() {
    const int64_t budget = question_.budget_bytes;
    // A step at which there is no room.
    std::optional<StepId> full;
    for (const MovableId m : question_.movables.ids()) {
      if (!choice_.is_chosen[m]) continue;
      const Movable& movable = question_.movables[m];
      if (full && live_[*full] + BytesAt(movable, *full) > budget) continue;
      Move(m, false);
      bool fits = true;
      VisitSteps(movable, [&](StepId step, int64_t) {
        if (live_[step] <= budget) return;
        fits = false;
        full = step;
      });
      if (!fits) Move(m, true);
    }
  }

  const OffloadQuestion& question_;
  OwnCopies own_copies_;
  const graph::OffloadUse& use_;
  const graph::IndexedVector<StepId, double> begins_ms_;
  graph::IndexedVector<StepId, int64_t> live_;
  LinkQueue queue_;
  OffloadChoice choice_;  // its stall_ms is that of all copies until the end
  // Movables known to make the step wait longer. They do so as well if more moves and the
  // step waits as long, since more copies never make it wait less.
  graph::IndexedVector<MovableId, graph::Flag> waits_;
};

// The calls with gradients of each unit.
using CallsOfUnits = std::vector<std::vector<graph::CallId>>;

CallsOfUnits CallsOf(const Trace& trace,
                     const std::vector<CheckpointedModule>& units) {
  std::map<graph::ModuleId, size_t> place_of;
  for (size_t k = 0; k < units.size(); ++k) place_of[units[k].module] = k;
  CallsOfUnits calls(units.size());
  for (const graph::CallId c : trace.calls.ids()) {
    const auto unit = place_of.find(trace.calls[c].module);
    const bool is_call_of_unit =
        unit != place_of.end() && !trace.calls[c].no_grad;
    if (is_call_of_unit) calls[unit->second].push_back(c);
  }
  return calls;
}

// Returns how many calls of units hold each storage, as an argument or a kept result.
graph::IndexedVector<StorageId, int> HoldersOf(
    const Trace& trace, const std::vector<CheckpointedModule>& units,
    const CallsOfUnits& calls) {
  graph::IndexedVector<StorageId, int> holders(trace.storages.size(), 0);
  for (size_t k = 0; k < units.size(); ++k) {
    for (const graph::CallId c : calls[k]) {
      std::set<StorageId> held_storages(trace.calls[c].inputs.begin(),
                                        trace.calls[c].inputs.end());
      for (int32_t place = 0; place < std::ssize(units[k].decisions); ++place) {
        if (!graph::Keeps(units[k].decisions[place])) continue;
        const std::vector<StorageId> kept_storages =
            KeptBy(trace, units[k], trace.calls[c], place);
        held_storages.insert(kept_storages.begin(), kept_storages.end());
      }
      for (const StorageId s : held_storages) ++holders[s];
    }
  }
  return holders;
}

}  // namespace

int64_t RoundingBytes(const Trace& trace) {
  int64_t bytes = 0;
  for (const graph::TraceStorage& storage : trace.storages)
    bytes += graph::AllocatedBytes(storage.bytes) - storage.bytes;
  return bytes;
}

std::vector<CheckpointedModule> WithAllOffloaded(
    const TraceProblem& problem, const std::vector<CheckpointedModule>& units) {
  const Trace& trace = *problem.trace;
  const auto last_write = LastWrites(trace);
  const CallsOfUnits calls = CallsOf(trace, units);
  const auto holders = HoldersOf(trace, units, calls);
  std::vector<CheckpointedModule> all = units;
  for (size_t k = 0; k < all.size(); ++k) {
    CheckpointedModule& unit = all[k];
    // Returns whether something holds for the storages in each call.
    const auto holds_in_calls = [&](auto&& holds) {
      return std::ranges::all_of(
          calls[k], [&](graph::CallId c) { return holds(trace.calls[c]); });
    };
    for (int32_t place = 0; place < std::ssize(unit.decisions); ++place) {
      OperatorDecision& decision = unit.decisions[place];
      if (decision != OperatorDecision::kSave) continue;
      const bool may_go = holds_in_calls([&](const TraceCall& call) {
        const std::vector<StorageId> kept_storages =
            KeptBy(trace, unit, call, place);
        return std::ranges::all_of(kept_storages, [&](StorageId s) {
          return !trace.storages[s].IsOlderThan(call.start) &&
                 last_write[s] <= call.AtPlace(place);
        });
      });
      if (may_go) decision = OperatorDecision::kOffload;
    }
    if (calls[k].empty()) continue;
    const int32_t count = graph::GivenCount(trace.calls[calls[k].front()]);
    for (int32_t place = 0; place < count; ++place) {
      const bool may_go = holds_in_calls([&](const TraceCall& call) {
        if (place >= graph::GivenCount(call)) return false;
        const StorageId s = graph::GivenStorage(trace, call, place);
        // The copy is of what there is when the call begins.
        const bool is_written = last_write[s] != graph::kNone &&
                                StartOf(last_write[s]) >= call.start;
        return trace.storages[s].born != graph::kNone &&
               trace.storages[s].bytes > 0 && holders[s] == 1 && !is_written;
      });
      if (may_go) unit.offloaded_arguments.push_back(place);
    }
  }
  return all;
}

MovableList MovablesOf(const TraceProblem& problem,
                       const std::vector<CheckpointedModule>& units,
                       const graph::Simulation& use) {
  const Trace& trace = *problem.trace;
  std::map<std::tuple<int32_t, bool, int32_t>, Movable> movables;
  for (const MovedId k : use.offload.storages.ids()) {
    const OffloadedStorage& storage = use.offload.storages[k];
    const TraceCall& call = trace.calls[storage.call];
    const auto unit =
        std::ranges::find(units, call.module, &CheckpointedModule::module);
    Movable movable = {.unit = static_cast<int32_t>(unit - units.begin()),
                       .is_argument = storage.op == graph::kNone};
    movable.place = movable.is_argument
                        ? *std::ranges::find(
                              unit->offloaded_arguments, storage.storage,
                              [&](int32_t place) {
                                return graph::GivenStorage(trace, call, place);
                              })
                        : call.PlaceOf(storage.op);
    const auto [at, is_new] = movables.emplace(
        std::tuple(movable.unit, movable.is_argument, movable.place),
        std::move(movable));
    at->second.moved_storages.push_back(k);
  }
  MovableList list;
  for (auto& [key, movable] : movables) list.push_back(std::move(movable));
  return list;
}

void Offload(const Movable& movable, std::vector<CheckpointedModule>& units) {
  CheckpointedModule& unit = units[movable.unit];
  if (movable.is_argument) {
    unit.offloaded_arguments.push_back(movable.place);
  } else {
    unit.decisions[movable.place] = OperatorDecision::kOffload;
  }
}

std::optional<OffloadChoice> ChooseWhatMoves(const OffloadQuestion& question) {
  return Choice(question).Find();
}

}  // namespace acplan::problems
