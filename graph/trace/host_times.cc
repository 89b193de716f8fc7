#include "graph/trace/host_times.h"

#include <algorithm>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {
namespace {

constexpr double kMsOfUs = 1e-3;

// Returns whether the unit is recomputed without a policy. A run of modules has one always.
bool IsWhole(const Trace& trace, const CheckpointedModule& unit) {
  return !trace.modules[unit.module].IsSegment() &&
         std::ranges::all_of(unit.decisions, [](OperatorDecision decision) {
           return decision == OperatorDecision::kRecompute;
         });
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
      us += host.forward.Of(is_view);
    } else if (StartOf(op) < trace.backward_end) {
      us += host.backward.Of(is_view);
    } else {
      update_us += host.update_us;
    }
  }
  return (us + update_us / static_cast<double>(trace.microbatches)) * kMsOfUs;
}

// Returns what units add to it.
double AddedHostMs(const Trace& trace,
                   const std::vector<CheckpointedModule>& modules,
                   const Simulation& simulation) {
  const HostTimes& host = *trace.host;
  double us = 0;
  for (const CheckpointedModule& unit : modules) {
    const HostPair& added = IsWhole(trace, unit) ? host.whole : host.decided;
    for (const TraceCall& call : trace.calls) {
      if (call.module != unit.module || call.no_grad) continue;
      for (const OperatorId op : call.Operators()) {
        us += added.Of(trace.operators[op].view);
      }
    }
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
  StepMs times{.device = simulation.recompute_ms,
               .host = HostMs(trace) + AddedHostMs(trace, modules, simulation)};
  for (const TraceOperator& op : trace.operators) times.device += op.runtime_ms;
  return times;
}

}  // namespace acplan::graph
