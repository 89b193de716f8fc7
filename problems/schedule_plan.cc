#include "problems/schedule_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "graph/base/json_text.h"
#include "problems/check/schedule_check.h"
#include "solver/status_names.h"

namespace acplan::problems {
namespace {

using graph::ScheduleGraph;
using nlohmann::ordered_json;
using solver::SearchStatus;

// Returns the figures of a schedule, without its runs.
ordered_json FiguresJson(const SchedulePlan& plan, const ScheduleGraph& graph) {
  const ScheduleAnswer& answer = plan.answer;
  ordered_json json = {{"status", solver::NameOf(answer.status, "no_solution")},
                       {"budget_bytes", plan.budget_bytes}};
  if (plan.run) {
    const ScheduleRun& run = *plan.run;
    json["peak_bytes"] = run.peak_bytes;
    json["peak_node"] = graph.nodes[run.sequence[run.peak_step]].name;
    json["recomputed"] = run.recompute_ms;
    json["gap"] =
        run.recompute_ms > 0 ? 1 - answer.bound_ms / run.recompute_ms : 0.0;
  }
  if (answer.status != SearchStatus::kInfeasible)
    json["bound"] = answer.bound_ms;
  if (answer.least_bytes > 0) json["least_bound_bytes"] = answer.least_bytes;
  json["baseline_peak_bytes"] = plan.baseline_peak_bytes;
  json["step_time"] = plan.step_ms;
  json["time_unit"] = graph.time_unit.empty() ? ordered_json(nullptr)
                                              : ordered_json(graph.time_unit);
  json["seconds"] = plan.seconds;
  json["models"] = answer.models;
  json["moments"] = answer.moments;
  json["tries"] = answer.tries;
  return json;
}

}  // namespace

int64_t ScheduleBaseline(const ScheduleGraph& graph) {
  return RunSchedule(graph, WithoutRecomputation(graph)).peak_bytes;
}

SchedulePlan PlanSchedule(const ScheduleGraph& graph,
                          const ScheduleQuestion& question) {
  const solver::Stopwatch stopwatch;
  SchedulePlan plan{.budget_bytes = question.budget_bytes,
                    .answer = SolveSchedule(graph, question),
                    .baseline_peak_bytes = ScheduleBaseline(graph)};
  for (const graph::ScheduleNode& node : graph.nodes) plan.step_ms += node.ms;
  if (plan.answer.schedule) {
    plan.run = RunSchedule(graph, *plan.answer.schedule);
    CheckSchedule(graph, plan.run->sequence,
                  {.budget_bytes = question.budget_bytes,
                   .peak_bytes = plan.run->peak_bytes,
                   .recompute_ms = plan.run->recompute_ms});
  }
  plan.seconds = stopwatch.Seconds();
  return plan;
}

std::vector<SchedulePlan> ScheduleFrontier(const ScheduleGraph& graph,
                                           int points,
                                           const solver::SearchLimits& limits) {
  const solver::LimitClock clock(limits);
  const int64_t least = std::ranges::max(NeededBytes(graph));
  const int64_t most = ScheduleBaseline(graph);
  std::vector<SchedulePlan> plans;
  std::optional<StagedSchedule> start;
  for (int p = 0; p < points; ++p) {
    const double share = static_cast<double>(p) / (points - 1);
    const int64_t budget =
        p + 1 == points
            ? most
            : least + static_cast<int64_t>(share *
                                           static_cast<double>(most - least));
    solver::SearchLimits remaining_limits = clock.Remaining();
    remaining_limits.time_limit_s /= points - p;
    plans.push_back(PlanSchedule(
        graph,
        {.budget_bytes = budget, .limits = remaining_limits, .start = start}));
    if (plans.back().answer.schedule) start = plans.back().answer.schedule;
  }
  return plans;
}

std::string ScheduleToJson(const SchedulePlan& plan, const ScheduleGraph& graph,
                           bool has_memory) {
  ordered_json json = {
      {"format", "acplan.schedule"}, {"version", 1}, {"model", graph.name}};
  json.update(FiguresJson(plan, graph));
  if (plan.run) {
    json["nodes"] = ordered_json::array();
    for (const graph::ScheduleNode& node : graph.nodes)
      json["nodes"].push_back(node.name);
    json["sequence"] = plan.run->sequence;
    if (has_memory) json["memory"] = plan.run->live_bytes;
  }
  return graph::IndentedText(json);
}

std::string ScheduleFrontierToJson(const std::vector<SchedulePlan>& plans,
                                   const ScheduleGraph& graph) {
  ordered_json json = {{"format", "acplan.schedule_frontier"},
                       {"version", 1},
                       {"model", graph.name},
                       {"points", ordered_json::array()}};
  for (const SchedulePlan& plan : plans)
    json["points"].push_back(FiguresJson(plan, graph));
  return graph::IndentedText(json);
}

}  // namespace acplan::problems
