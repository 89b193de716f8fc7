#include "problems/plan/plan_streams.h"

#include <algorithm>
#include <utility>

#include "graph/trace/stream_times.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {
namespace {

// A step this much longer than another one, as a share, takes as long.
constexpr double kSameStep = 1e-9;

}  // namespace

std::optional<PlanStreams> StreamsOf(const graph::Trace& trace,
                                     const graph::Simulator& simulator,
                                     const Plan& plan) {
  if (!HasStreams(trace)) return std::nullopt;
  const graph::StreamTimes before =
      TimeOnStreams(trace, simulator.Simulate({}).steps);
  const graph::StreamTimes after = TimeOnStreams(
      trace,
      simulator.Simulate(CheckpointedModules(trace, plan.modules)).steps);
  return PlanStreams{
      .baseline_ms = before.step_ms,
      .baseline_exposed_ms = before.exposed_ms,
      .communication_ms = after.communication_ms,
      .exposed_ms = after.exposed_ms,
      .step_ms = after.step_ms + (plan.offload ? plan.offload->stall_ms : 0)};
}

double OverheadOf(const Plan& plan) {
  const double before_ms =
      plan.streams ? plan.streams->baseline_ms : plan.baseline.runtime_ms;
  if (before_ms <= 0) return 0;
  return plan.streams ? std::max(0.0, plan.streams->step_ms / before_ms - 1)
                      : plan.CostMs() / before_ms;
}

bool IsProvenStep(const Plan& plan) {
  const bool waits = plan.WaitsForHost();
  const std::optional<double>& least_ms =
      waits ? plan.host->least_step_ms : plan.streams->least_step_ms;
  const double step_ms = waits ? plan.host->step_ms : plan.streams->step_ms;
  return least_ms && step_ms <= *least_ms * (1 + kSameStep);
}

Plan WithProvenStep(Plan plan) {
  if (!plan.streams || !plan.HasPlan() || plan.offload) return plan;
  if (IsProvenStep(plan)) {
    plan.status = PlanStatus::kOptimal;
    plan.limit.reset();
  } else if (plan.status == PlanStatus::kOptimal) {
    plan.status = PlanStatus::kFeasible;
    plan.limit = "unproven";
  }
  return plan;
}

}  // namespace acplan::problems
