#include "problems/check/host_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/check/stated_number.h"
#include "problems/check/stream_rules.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

using graph::OperatorId;
using graph::Trace;

namespace {

// The operators and calls of a step that take the host a time, counted.
struct HostCounts {
  // Indexed by whether the operator is a view.
  double forward[2] = {0, 0}, backward[2] = {0, 0};
  double in_units[2] = {0, 0}, in_quiet_units[2] = {0, 0};
  double updates = 0, calls = 0, calls_in_units = 0, launches = 0;
};

double Us(const graph::HostPair& pair, const double (&counts)[2]) {
  return pair.op_us * counts[0] + pair.view_us * counts[1];
}

// Returns the milliseconds without what units add.
double BaselineMs(const graph::HostTimes& host, const HostCounts& counts) {
  return (Us(host.forward, counts.forward) +
          Us(host.backward, counts.backward) + host.update_us * counts.updates +
          host.call_us * counts.calls) /
         1e3;
}

double AddedMs(const graph::HostTimes& host, const HostCounts& counts) {
  return (Us(host.unit, counts.in_units) +
          Us(host.quiet_unit, counts.in_quiet_units) +
          host.module_us * counts.calls_in_units +
          host.launch_us * counts.launches) /
         1e3;
}

HostCounts CountStep(const Trace& trace) {
  HostCounts counts;
  for (const OperatorId op : trace.operators.ids()) {
    const size_t view = trace.operators[op].view ? 1 : 0;
    const graph::Time time = graph::StartOf(op);
    if (time >= trace.backward_end) {
      counts.updates += 1 / static_cast<double>(trace.microbatches);
    } else {
      (time < trace.forward_end ? counts.forward : counts.backward)[view] += 1;
    }
  }
  for (const graph::TraceCall& call : trace.calls) {
    if (trace.modules[call.module].run_end == graph::kNone) counts.calls += 1;
  }
  return counts;
}

// Returns for each call the number of calls of modules in it, itself included: each call
// counts for all that are around it.
graph::IndexedVector<graph::CallId, int> CallsInside(const Trace& trace) {
  graph::IndexedVector<graph::CallId, int> counts_in(trace.calls.size(), 0);
  for (const graph::CallId c : trace.calls.ids()) {
    if (trace.modules[trace.calls[c].module].run_end != graph::kNone) continue;
    for (graph::CallId outer = c; outer != graph::kNone;
         outer = trace.calls[outer].parent) {
      ++counts_in[outer];
    }
  }
  return counts_in;
}

// Returns whether the call writes to storages that none of its operators created.
bool WritesToOthers(const Trace& trace, const graph::TraceCall& call) {
  std::set<graph::StorageId> own;
  for (const OperatorId op : call.Operators()) {
    own.insert(trace.operators[op].creates.begin(),
               trace.operators[op].creates.end());
    for (const graph::StorageId storage : trace.operators[op].mutates) {
      if (!own.contains(storage)) return true;
    }
  }
  return false;
}

bool IsQuiet(const Trace& trace, const graph::CheckpointedModule& unit,
             const graph::TraceCall& call) {
  const auto recomputed =
      std::ranges::count(unit.decisions, graph::OperatorDecision::kRecompute);
  return recomputed == std::ssize(unit.decisions) &&
         trace.modules[unit.module].run_end == graph::kNone &&
         !WritesToOthers(trace, call);
}

HostCounts CountUnits(const Trace& trace, const Plan& plan) {
  HostCounts counts;
  const auto counts_in = CallsInside(trace);
  const std::vector<graph::CheckpointedModule> units =
      CheckpointedModules(trace, plan.modules);
  for (const graph::CheckpointedModule& unit : units) {
    for (const graph::CallId c : trace.calls.ids()) {
      const graph::TraceCall& call = trace.calls[c];
      if (call.module != unit.module || call.no_grad) continue;
      double(&in_units)[2] =
          IsQuiet(trace, unit, call) ? counts.in_quiet_units : counts.in_units;
      for (const OperatorId op : call.Operators()) {
        in_units[trace.operators[op].view ? 1 : 0] += 1;
      }
      counts.calls_in_units += counts_in[c];
    }
  }
  for (const graph::Simulation::Step& step : Simulate(trace, units).steps) {
    const bool runs_again = step.redone != graph::kNone;
    if (runs_again && !trace.operators[step.op].view) counts.launches += 1;
  }
  return counts;
}

double DeviceMs(const Trace& trace, const Plan& plan, double cost_ms) {
  if (plan.streams) {
    const double stall_ms = plan.offload ? plan.offload->stall_ms : 0;
    const auto units = CheckpointedModules(trace, plan.modules);
    return LongestPathMs(trace, Simulate(trace, units)) + stall_ms;
  }
  double ms = cost_ms;
  for (const graph::TraceOperator& op : trace.operators) ms += op.runtime_ms;
  return ms;
}

}  // namespace

std::optional<std::string> FalseHostTime(const Trace& trace, const Plan& plan,
                                         double cost_ms) {
  if (!plan.host) return std::nullopt;
  const PlanHost& stated = *plan.host;
  if (!trace.host) {
    return "the plan states a time of the host, which the trace does not have";
  }
  const double baseline_ms = BaselineMs(*trace.host, CountStep(trace));
  const double host_ms =
      baseline_ms + AddedMs(*trace.host, CountUnits(trace, plan));
  const double device_ms = DeviceMs(trace, plan, cost_ms);
  const double step_ms = std::max(host_ms, device_ms);
  if (IsFalse(stated.baseline_ms, baseline_ms)) {
    return Differs("host's time without it in ms", stated.baseline_ms,
                   baseline_ms);
  }
  if (IsFalse(stated.ms, host_ms)) {
    return Differs("host's time in ms", stated.ms, host_ms);
  }
  if (IsFalse(stated.device_ms, device_ms)) {
    return Differs("device's time in ms", stated.device_ms, device_ms);
  }
  if (IsFalse(stated.step_ms, step_ms)) {
    return Differs("step in ms", stated.step_ms, step_ms);
  }
  if (stated.least_step_ms && *stated.least_step_ms > step_ms &&
      IsFalse(*stated.least_step_ms, step_ms)) {
    return fmt::format(
        "the plan says that no plan's step takes less than {} ms; its own "
        "takes {} ms",
        *stated.least_step_ms, step_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
