#include "problems/check/state_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <vector>

#include "graph/base/flag.h"

// Walks the step backwards, from the time when backward first asks for
// something saved in the call to the start of the call, with the set of
// storages written to so far: an operator that reads one of them would read
// something else than in forward.
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

bool IsInside(const Trace& trace, graph::CallId call, const TraceCall& outer) {
  for (; call != graph::kNone; call = trace.calls[call].parent) {
    if (&trace.calls[call] == &outer) return true;
  }
  return false;
}

Rerun RerunOf(const Trace& trace, const TraceCall& call) {
  Rerun rerun;
  for (const graph::SavedTensor& saved : trace.saved) {
    if (!IsInside(trace, saved.call, call)) continue;
    rerun.time = std::min(rerun.time, saved.unpacked);
    rerun.stop = std::max(rerun.stop, saved.packed);
  }
  return rerun;
}

std::optional<std::string> BrokenIn(const Trace& trace,
                                    const graph::CheckpointedModule& unit,
                                    const TraceCall& call) {
  const Rerun rerun = RerunOf(trace, call);
  if (rerun.time == kNever) return std::nullopt;
  graph::IndexedVector<StorageId, graph::Flag> is_written(trace.storages.size(),
                                                          false);
  for (const OperatorId op :
       std::views::reverse(graph::OperatorsIn(call.start, rerun.time))) {
    const TraceOperator& now = trace.operators[op];
    const bool runs_again =
        StartOf(op) < std::min(call.end, rerun.stop) && !now.view &&
        (unit.decisions.empty() || unit.decisions[call.PlaceOf(op)] ==
                                       graph::OperatorDecision::kRecompute);
    const auto is_stale = [&](graph::StorageId s) {
      return is_written[s] && trace.storages[s].IsOlderThan(call.start) &&
             !IsCounter(trace, call, s);
    };
    if (runs_again && std::ranges::any_of(now.reads, is_stale)) {
      return fmt::format(
          "{}: operator {} '{}' runs again and reads memory that was written "
          "to since",
          trace.modules[call.module].fqn, call.PlaceOf(op),
          trace.operator_names[now.name]);
    }
    for (const graph::StorageId s : now.mutates) is_written[s] = true;
  }
  return std::nullopt;
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
    const Trace& trace, const graph::CheckpointedModule& unit) {
  const bool has_writes = std::ranges::any_of(
      trace.operators,
      [](const TraceOperator& op) { return !op.mutates.empty(); });
  if (!has_writes) return std::nullopt;
  for (const TraceCall& call : trace.calls) {
    if (call.module != unit.module || call.no_grad) continue;
    if (auto broken = BrokenIn(trace, unit, call)) return broken;
  }
  return std::nullopt;
}

}  // namespace acplan::problems
