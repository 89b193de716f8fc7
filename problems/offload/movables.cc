#include "problems/offload/movables.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "graph/trace/allocation.h"
#include "graph/trace/link_time.h"

// What is offloaded changes neither the steps nor their order. So one simulation
// with everything offloaded tells for each storage when it would go and come, and
// during which steps the device would be without it; what a choice uses is the
// plan's bytes without those, and how long it waits follows from the events of
// what is chosen alone.
//
// The choice is greedy: at the step with the most bytes above the budget the
// largest movable goes that makes nothing wait, or else the one that makes the
// step wait least for its bytes. More copies never make the step wait less, since
// they only delay what is behind them. In the end what turned out not to be
// needed stays on the device.

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OffloadedStorage;
using graph::OperatorDecision;
using graph::Trace;
using graph::TraceCall;

namespace {

// As many of the largest are compared at a step.
constexpr int kMostCompared = 48;
// Waits that differ by less are equal.
constexpr double kNoWaitMs = 1e-9;

// The storages that an operator of a unit keeps.
std::vector<int32_t> KeptBy(const Trace& trace, const CheckpointedModule& unit,
                            graph::Time start, int32_t place) {
  const graph::TraceOperator& op = trace.operators[start + place];
  const auto kept = unit.kept_results.find(place);
  if (kept == unit.kept_results.end()) return op.outputs;
  std::vector<graph::StorageId> storages;
  for (const int32_t r : kept->second) {
    storages.push_back(trace.tensors[op.results[r]].storage);
  }
  return storages;
}

// The last operator that writes to a storage in place, or -1.
std::vector<int32_t> LastWrites(const Trace& trace) {
  std::vector<int32_t> last(trace.storages.size(), -1);
  for (graph::OperatorId op = 0; op < trace.backward_end; ++op) {
    for (const graph::StorageId s : trace.operators[op].mutates) last[s] = op;
  }
  return last;
}

class Choice {
 public:
  explicit Choice(const OffloadQuestion& question)
      : question_(question),
        use_(question.moved.offload),
        begins_ms_(
            graph::BeginsOfSteps(*question.problem.trace, question.moved)),
        live_(question.saved.live_bytes),
        moves_(use_.storages.size(), 0) {
    choice_.is_chosen.assign(question.movables.size(), 0);
  }

  std::optional<OffloadChoice> Find() && {
    for (;;) {
      const auto most = std::ranges::max_element(live_);
      if (most == live_.end() || *most <= question_.budget_bytes) break;
      const std::optional<int32_t> next =
          Next(static_cast<int32_t>(most - live_.begin()));
      if (!next) return std::nullopt;
      Move(*next, true);
      choice_.stall_ms = StallMs();
    }
    KeepWhatNeedNotGo();
    choice_.stall_ms = StallMs();
    return std::move(choice_);
  }

 private:
  bool IsAway(const Movable& movable, graph::StepId step) const {
    return std::ranges::any_of(movable.moved, [&](int32_t k) {
      return use_.storages[k].away_begin <= step &&
             step < use_.storages[k].away_end;
    });
  }

  int64_t BytesAt(const Movable& movable, graph::StepId step) const {
    int64_t bytes = 0;
    for (const int32_t k : movable.moved) {
      const OffloadedStorage& storage = use_.storages[k];
      if (storage.away_begin <= step && step < storage.away_end) {
        bytes += graph::AllocatedBytes(storage.bytes);
      }
    }
    return bytes;
  }

  double StallMs() const {
    return graph::TimeOnLink(begins_ms_, use_, moves_,
                             question_.limits.bytes_per_second)
        .stall_ms;
  }

  bool FitsHost() const {
    if (question_.limits.host_memory_bytes >= use_.host_peak_bytes) return true;
    int64_t bytes = 0;
    for (const graph::OffloadEvent& event : use_.events) {
      if (moves_[event.moved] == 0) continue;
      using enum graph::OffloadEvent::Kind;
      const int64_t of_storage = use_.storages[event.moved].bytes;
      if (event.kind == kSend) bytes += of_storage;
      if (event.kind == kUse || event.kind == kDrop) bytes -= of_storage;
      if (bytes > question_.limits.host_memory_bytes) return false;
    }
    return true;
  }

  void Mark(graph::ModuleId m, bool moves) {
    for (const int32_t k : question_.movables[m].moved) {
      moves_[k] = moves ? 1 : 0;
    }
  }

  void Move(graph::ModuleId m, bool moves) {
    Mark(m, moves);
    choice_.is_chosen[m] = moves ? 1 : 0;
    for (const int32_t k : question_.movables[m].moved) {
      const OffloadedStorage& storage = use_.storages[k];
      const int64_t bytes = graph::AllocatedBytes(storage.bytes);
      const auto end = std::min<int32_t>(
          storage.away_end, static_cast<int32_t>(std::ssize(live_)));
      for (graph::StepId step = storage.away_begin; step < end; ++step) {
        live_[step] += moves ? -bytes : bytes;
      }
    }
  }

  // What goes next to lower the bytes at a step.
  std::optional<int32_t> Next(graph::StepId step) {
    std::vector<std::pair<int64_t, int32_t>> by_bytes;
    for (graph::ModuleId m = 0; m < std::ssize(question_.movables); ++m) {
      const Movable& movable = question_.movables[m];
      if (choice_.is_chosen[m] == 0 && IsAway(movable, step)) {
        by_bytes.emplace_back(-BytesAt(movable, step), m);
      }
    }
    std::ranges::sort(by_bytes);
    std::optional<int32_t> next;
    double least = std::numeric_limits<double>::infinity();
    int compared = 0;
    for (const auto& [bytes, m] : by_bytes) {
      if (++compared > kMostCompared) break;
      Mark(m, true);
      const double stall_ms = StallMs();
      const bool may_go =
          stall_ms <= question_.most_stall_ms + kNoWaitMs && FitsHost();
      Mark(m, false);
      if (!may_go) continue;
      const double more_ms = stall_ms - choice_.stall_ms;
      if (more_ms <= kNoWaitMs) return m;
      const double share = more_ms / static_cast<double>(-bytes);
      if (share < least) {
        least = share;
        next = m;
      }
    }
    return next;
  }

  void KeepWhatNeedNotGo() {
    for (graph::ModuleId m = 0; m < std::ssize(question_.movables); ++m) {
      if (choice_.is_chosen[m] == 0) continue;
      Move(m, false);
      const bool fits = std::ranges::all_of(live_, [&](int64_t bytes) {
        return bytes <= question_.budget_bytes;
      });
      if (!fits) Move(m, true);
    }
  }

  const OffloadQuestion& question_;
  const graph::OffloadUse& use_;
  const std::vector<double> begins_ms_;
  std::vector<int64_t> live_;  // a step
  std::vector<char> moves_;    // in OffloadUse::storages
  OffloadChoice choice_;
};

}  // namespace

std::vector<CheckpointedModule> WithAllOffloaded(
    const TraceProblem& problem, const std::vector<CheckpointedModule>& units) {
  const Trace& trace = *problem.trace;
  const std::vector<int32_t> last_write = LastWrites(trace);
  std::vector<CheckpointedModule> all = units;
  for (CheckpointedModule& unit : all) {
    for (int32_t place = 0; place < std::ssize(unit.decisions); ++place) {
      OperatorDecision& decision = unit.decisions[place];
      if (decision != OperatorDecision::kSave) continue;
      const bool may_go =
          std::ranges::all_of(trace.calls, [&](const TraceCall& call) {
            if (call.module != unit.module) return true;
            const std::vector<int32_t> kept =
                KeptBy(trace, unit, call.start, place);
            return std::ranges::all_of(kept, [&](graph::StorageId s) {
              return trace.storages[s].born >= call.start &&
                     last_write[s] <= call.start + place;
            });
          });
      if (may_go) decision = OperatorDecision::kOffload;
    }
  }
  return all;
}

std::vector<Movable> MovablesOf(const TraceProblem& problem,
                                const std::vector<CheckpointedModule>& units,
                                const graph::Simulation& use) {
  const Trace& trace = *problem.trace;
  std::map<std::pair<int32_t, int32_t>, Movable> movables;
  for (int32_t k = 0; k < std::ssize(use.offload.storages); ++k) {
    const OffloadedStorage& storage = use.offload.storages[k];
    const TraceCall& call = trace.calls[storage.call];
    const auto unit =
        std::ranges::find(units, call.module, &CheckpointedModule::module);
    Movable movable = {.unit = static_cast<int32_t>(unit - units.begin()),
                       .place = storage.op - call.start};
    const auto [at, is_new] = movables.emplace(
        std::pair(movable.unit, movable.place), std::move(movable));
    at->second.moved.push_back(k);
  }
  std::vector<Movable> list;
  for (auto& [key, movable] : movables) list.push_back(std::move(movable));
  return list;
}

std::optional<OffloadChoice> ChooseWhatMoves(const OffloadQuestion& question) {
  return Choice(question).Find();
}

}  // namespace acplan::problems
