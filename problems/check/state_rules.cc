#include "problems/check/state_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <vector>

// Walks the step backwards and keeps, for each storage, the next operator that writes to
// it. If that operator comes before backward first asks for something saved in a unit's
// call, an operator of the call that reads the storage would read something else than in
// forward.

namespace acplan::problems {
namespace {

using graph::CallId;
using graph::kNever;
using graph::OperatorId;
using graph::StorageId;
using graph::Time;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

// The time when a call runs again, and the operator before which it stops.
struct Rerun {
  graph::Time time = kNever;
  graph::Time stop = 0;
};

Rerun RerunOf(const Trace& trace,
              const std::vector<graph::SavedId>& saved_in_call) {
  Rerun rerun;
  for (const graph::SavedId k : saved_in_call) {
    rerun.time = std::min(rerun.time, trace.saved[k].unpacked);
    rerun.stop = std::max(rerun.stop, trace.saved[k].packed);
  }
  return rerun;
}

// A call of a unit, with the time when it runs again.
struct UnitCall {
  const graph::CheckpointedModule* unit = nullptr;
  const TraceCall* call = nullptr;
  Rerun rerun = {};

  bool RunsAgain(OperatorId op) const {
    const Time stop =
        unit->stops_early ? std::min(call->end, rerun.stop) : call->end;
    return StartOf(op) < stop &&
           (unit->decisions.empty() || unit->decisions[call->PlaceOf(op)] ==
                                           graph::OperatorDecision::kRecompute);
  }
};

// Returns the calls of units that run again, in ascending order of their ends.
std::vector<UnitCall> CallsThatRunAgain(
    const Trace& trace, const CallIndex& index,
    const std::vector<graph::CheckpointedModule>& units) {
  std::vector<UnitCall> calls;
  for (const graph::CheckpointedModule& unit : units) {
    for (const graph::CallId c : index.calls_of[unit.module]) {
      const Rerun rerun = RerunOf(trace, index.saved_in[c]);
      if (rerun.time != kNever) {
        calls.push_back({&unit, &trace.calls[c], rerun});
      }
    }
  }
  std::ranges::sort(calls, {},
                    [](const UnitCall& unit) { return unit.call->end; });
  return calls;
}

}  // namespace

bool IsCounter(const Trace& trace, const TraceCall& call,
               graph::StorageId storage) {
  for (const OperatorId op : call.Operators()) {
    const TraceOperator& now = trace.operators[op];
    if (std::ranges::find(now.reads, storage) == now.reads.end()) continue;
    const bool writes =
        std::ranges::find(now.mutates, storage) != now.mutates.end();
    const auto others = std::ranges::count_if(
        now.outputs, [&](graph::StorageId s) { return s != storage; });
    if (others > 0 || (!writes && !now.view)) return false;
  }
  return true;
}

std::optional<std::string> BrokenStateRule(
    const Trace& trace, const CallIndex& index,
    const std::vector<graph::CheckpointedModule>& units) {
  const bool has_writes = std::ranges::any_of(
      trace.operators,
      [](const TraceOperator& op) { return !op.mutates.empty(); });
  if (!has_writes) return std::nullopt;
  std::vector<UnitCall> calls = CallsThatRunAgain(trace, index, units);
  // The start of the first operator after `op` that writes to a storage.
  graph::IndexedVector<StorageId, graph::Time> next_write(trace.storages.size(),
                                                          kNever);
  for (const OperatorId op : std::views::reverse(trace.operators.ids())) {
    const TraceOperator& now = trace.operators[op];
    while (!calls.empty() && calls.back().call->start > StartOf(op)) {
      calls.pop_back();
    }
    const UnitCall* unit_call =
        !calls.empty() && calls.back().call->end > StartOf(op) ? &calls.back()
                                                               : nullptr;
    if (unit_call != nullptr && !now.view && unit_call->RunsAgain(op)) {
      const TraceCall& call = *unit_call->call;
      const auto is_stale = [&](StorageId s) {
        return next_write[s] < unit_call->rerun.time &&
               trace.storages[s].IsOlderThan(call.start) &&
               !IsCounter(trace, call, s);
      };
      if (std::ranges::any_of(now.reads, is_stale)) {
        return fmt::format(
            "{}: operator {} '{}' runs again and reads memory that was "
            "written to since",
            trace.modules[call.module].fqn, call.PlaceOf(op),
            trace.operator_names[now.name]);
      }
    }
    for (const StorageId s : now.mutates) next_write[s] = StartOf(op);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
