#include "cli/planning/step_drawing.h"

#include <optional>

#include "problems/model/memory_model.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/trace_memory.h"

namespace acplan::cli {

MemoryCurve CurveOf(const graph::Trace& trace,
                    const graph::Simulation& simulation) {
  MemoryCurve curve{.live_bytes = simulation.live_bytes.values(), .ms = {}};
  for (const graph::Simulation::Step& step : simulation.steps) {
    curve.ms.push_back(trace.operators[step.op].runtime_ms);
  }
  return curve;
}

std::string StepDrawing(const graph::Trace* trace, const problems::Plan& plan,
                        const Terminal& terminal) {
  if (!terminal.IsScreen() || trace == nullptr || !plan.HasPlan() ||
      plan.memory.model != problems::MemoryModel::kTrace) {
    return "";
  }
  const std::optional<graph::Trace> with_segments =
      problems::WithSegmentsOf(*trace, plan.modules);
  const graph::Trace& step = with_segments ? *with_segments : *trace;
  const auto of_rank = BytesOfRank(step, plan.memory);
  const graph::Simulator simulator(step);
  const auto curve_of = [&](const std::vector<problems::PlannedModule>& units) {
    return CurveOf(
        step,
        problems::OnRank(simulator.Simulate(CheckpointedModules(step, units)),
                         of_rank));
  };
  return DrawMemory({curve_of({}), curve_of(plan.modules)}, plan.budget_bytes,
                    terminal) +
         "\n";
}

}  // namespace acplan::cli
