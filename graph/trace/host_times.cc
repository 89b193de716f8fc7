#include "graph/trace/host_times.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "graph/trace/simulation.h"
#include "graph/trace/stream_times.h"
#include "graph/trace/trace.h"

namespace acplan::graph {
namespace {

constexpr double kMsOfUs = 1e-3;

// Returns the number of calls of modules in a call, itself included: those that follow it in
// pre-order, up to one that is not inside it.
int CallsIn(const Trace& trace, CallId outer) {
  int count = 0;
  for (CallId c = outer; IndexOf(c) < std::ssize(trace.calls);
       c = CallId{IndexOf(c) + 1}) {
    const TraceCall& call = trace.calls[c];
    if (c != outer && call.parent < outer) break;
    if (!trace.modules[call.module].IsSegment()) ++count;
  }
  return count;
}

// Returns the host's time without units.
double HostMs(const Trace& trace) {
  const HostTimes& host = *trace.host;
  const auto calls =
      std::ranges::count_if(trace.calls, [&](const TraceCall& call) {
        return !trace.modules[call.module].IsSegment();
      });
  double us = host.call_us * static_cast<double>(calls);
  double update_us = 0;
  for (const OperatorId op : trace.operators.ids()) {
    const bool is_view = trace.operators[op].view;
    if (StartOf(op) < trace.forward_end) {
      us += host.forward.Us(is_view);
    } else if (StartOf(op) < trace.backward_end) {
      us += host.backward.Us(is_view);
    } else {
      update_us += host.update_us;
    }
  }
  return (us + update_us / static_cast<double>(trace.microbatches)) * kMsOfUs;
}

double DeviceMs(const Trace& trace, const Simulation& simulation) {
  if (HasStreams(trace)) return TimeOnStreams(trace, simulation.steps).step_ms;
  double ms = simulation.recompute_ms;
  for (const TraceOperator& op : trace.operators) ms += op.runtime_ms;
  return ms;
}

// Returns whether the call writes to memory that it did not make.
bool WritesOutside(const Trace& trace, const TraceCall& call) {
  return std::ranges::any_of(call.Operators(), [&](OperatorId op) {
    return std::ranges::any_of(
        trace.operators[op].mutates, [&](StorageId storage) {
          return trace.storages[storage].IsOlderThan(call.start);
        });
  });
}

// Returns what units add to it.
double AddedHostMs(const Trace& trace,
                   const std::vector<CheckpointedModule>& modules,
                   const Simulation& simulation) {
  const HostTimes& host = *trace.host;
  double us = 0;
  // The units, and whether each may be quiet.
  std::unordered_map<ModuleId, bool> units;
  for (const CheckpointedModule& unit : modules) {
    units[unit.module] =
        unit.RecomputesEverything() && !trace.modules[unit.module].IsSegment();
  }
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    const auto unit = units.find(call.module);
    if (unit == units.end() || call.no_grad) continue;
    const bool is_quiet = unit->second && !WritesOutside(trace, call);
    const HostPair& pair = is_quiet ? host.quiet_unit : host.unit;
    for (const OperatorId op : call.Operators()) {
      us += pair.Us(trace.operators[op].view);
    }
    us += host.module_us * CallsIn(trace, c);
  }
  for (const Simulation::Step& step : simulation.steps) {
    if (step.redone != kNone && !trace.operators[step.op].view) {
      us += host.launch_us;
    }
  }
  return us * kMsOfUs;
}

}  // namespace

std::optional<StepMs> TimesOfStep(
    const Trace& trace, const std::vector<CheckpointedModule>& modules,
    const Simulation& simulation) {
  if (!trace.host) return std::nullopt;
  return StepMs{
      .device = DeviceMs(trace, simulation),
      .host = HostMs(trace) + AddedHostMs(trace, modules, simulation)};
}

}  // namespace acplan::graph
