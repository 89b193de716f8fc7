#include "problems/check/stream_rules.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/check/stated_number.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

using graph::Trace;
using graph::TraceOperator;

namespace {

// The places of steps, ascending.
using Places = std::vector<size_t>;

// Adds, if there is one, the last place before `place`.
void AddLastBefore(const Places& places, size_t place, Places& followed) {
  const auto next = std::ranges::lower_bound(places, place);
  if (next != places.begin()) followed.push_back(*(next - 1));
}

bool Communicates(const Trace& trace, const TraceOperator& op) {
  const std::string& name = trace.operator_names[op.name];
  const std::string space = name.substr(0, name.find('.'));
  return space == "c10d" || space == "_c10d_functional";
}

struct StreamFigures {
  double step_ms = 0, communication_ms = 0, exposed_ms = 0;
};

StreamFigures FiguresOnStreams(
    const Trace& trace, const std::vector<graph::CheckpointedModule>& units) {
  const graph::Simulation simulation = Simulate(trace, units);
  StreamFigures figures{.step_ms = LongestPathMs(trace, simulation)};
  figures.exposed_ms = figures.step_ms;
  for (const graph::Simulation::Step& step : simulation.steps) {
    const TraceOperator& op = trace.operators[step.op];
    if (Communicates(trace, op)) {
      figures.communication_ms += op.runtime_ms;
    } else if (op.stream == 0) {
      figures.exposed_ms -= op.runtime_ms;
    }
  }
  return figures;
}

}  // namespace

double LongestPathMs(const Trace& trace, const graph::Simulation& simulation) {
  std::map<int32_t, Places> of_stream;
  std::map<graph::OperatorId, Places> of_operator;
  size_t count = 0;
  for (const graph::Simulation::Step& step : simulation.steps) {
    of_stream[trace.operators[step.op].stream].push_back(count);
    of_operator[step.op].push_back(count++);
  }
  // The longest path after each step, from the last one back.
  std::vector<double> after_ms(count, 0);
  double longest_ms = 0;
  for (size_t k = count; k-- > 0;) {
    const TraceOperator& op =
        trace.operators[simulation.steps[graph::StepId(k)].op];
    Places followed;
    AddLastBefore(of_stream[op.stream], k, followed);
    for (const graph::OperatorId other : op.waits) {
      AddLastBefore(of_operator[other], k, followed);
    }
    const double from_here_ms = op.runtime_ms + after_ms[k];
    longest_ms = std::max(longest_ms, from_here_ms);
    for (const size_t before : followed) {
      after_ms[before] = std::max(after_ms[before], from_here_ms);
    }
  }
  return longest_ms;
}

std::optional<std::string> FalseStreamTime(const Trace& trace,
                                           const Plan& plan) {
  if (!plan.streams) return std::nullopt;
  const PlanStreams& stated = *plan.streams;
  const StreamFigures before = FiguresOnStreams(trace, {});
  StreamFigures after =
      FiguresOnStreams(trace, CheckpointedModules(trace, plan.modules));
  if (plan.offload) after.step_ms += plan.offload->stall_ms;
  if (IsFalse(stated.baseline_ms, before.step_ms)) {
    return Differs("step without it in ms", stated.baseline_ms, before.step_ms);
  }
  if (IsFalse(stated.baseline_exposed_ms, before.exposed_ms)) {
    return Differs("exposed communication without it in ms",
                   stated.baseline_exposed_ms, before.exposed_ms);
  }
  if (IsFalse(stated.communication_ms, after.communication_ms)) {
    return Differs("communication in ms", stated.communication_ms,
                   after.communication_ms);
  }
  if (IsFalse(stated.exposed_ms, after.exposed_ms)) {
    return Differs("exposed communication in ms", stated.exposed_ms,
                   after.exposed_ms);
  }
  if (IsFalse(stated.step_ms, after.step_ms)) {
    return Differs("step on streams in ms", stated.step_ms, after.step_ms);
  }
  if (stated.least_step_ms && *stated.least_step_ms > after.step_ms &&
      IsFalse(*stated.least_step_ms, after.step_ms)) {
    return fmt::format(
        "the plan says that no plan's step takes less than {} ms on streams; "
        "its own takes {} ms",
        *stated.least_step_ms, after.step_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
