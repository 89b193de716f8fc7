#include "graph/trace/stream_times.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "graph/base/flag.h"

namespace acplan::graph {

bool IsCollective(std::string_view name) {
  return name.starts_with("c10d.") || name.starts_with("_c10d_functional.");
}

bool HasStreams(const Trace& trace) {
  return std::ranges::any_of(
      trace.operators, [](const TraceOperator& op) { return op.stream != 0; });
}

void MergeStreams(Trace& trace) {
  for (TraceOperator& op : trace.operators) {
    op.stream = 0;
    op.waits.clear();
  }
}

IndexedVector<StepId, double> StartsOnStreams(
    const Trace& trace, const IndexedVector<StepId, Simulation::Step>& steps) {
  std::unordered_map<int32_t, double> free_ms;
  // When the latest run of each operator ends.
  IndexedVector<OperatorId, double> end_ms(trace.operators.size(), 0);
  IndexedVector<StepId, double> starts;
  starts.reserve(steps.size());
  for (const Simulation::Step& step : steps) {
    const TraceOperator& op = trace.operators[step.op];
    double& stream_ms = free_ms[op.stream];
    for (const OperatorId other : op.waits) {
      stream_ms = std::max(stream_ms, end_ms[other]);
    }
    starts.push_back(stream_ms);
    stream_ms += op.runtime_ms;
    end_ms[step.op] = stream_ms;
  }
  return starts;
}

StreamTimes TimeOnStreams(
    const Trace& trace, const IndexedVector<StepId, Simulation::Step>& steps) {
  IndexedVector<OperatorNameId, Flag> is_collective;
  for (const std::string& name : trace.operator_names) {
    is_collective.push_back(IsCollective(name));
  }
  const IndexedVector<StepId, double> starts = StartsOnStreams(trace, steps);
  StreamTimes times;
  double computation_ms = 0;  // on the default stream
  for (const StepId k : steps.ids()) {
    const TraceOperator& op = trace.operators[steps[k].op];
    times.step_ms = std::max(times.step_ms, starts[k] + op.runtime_ms);
    if (is_collective[op.name]) {
      times.communication_ms += op.runtime_ms;
    } else if (op.stream == 0) {
      computation_ms += op.runtime_ms;
    }
  }
  times.exposed_ms = std::max(0.0, times.step_ms - computation_ms);
  return times;
}

}  // namespace acplan::graph
