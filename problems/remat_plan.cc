#include "problems/remat_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/joint/joint_moves.h"
#include "problems/check/remat_check.h"
#include "problems/remat/link_use.h"
#include "problems/remat/remat_offload.h"
#include "problems/remat/remat_problem.h"
#include "solver/status_names.h"

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointRun;
using graph::JointStage;
using nlohmann::ordered_json;
using solver::SearchStatus;

constexpr double kLeastSeconds = 10;

std::string_view StatusName(const RematPlan& plan) {
  return plan.is_given ? "given" : solver::NameOf(plan.status, "no_solution");
}

RematPlan PlanOn(const JointGraph& graph) {
  RematPlan plan{.baseline_peak_bytes = RematBaseline(graph)};
  for (const graph::JointNode& node : graph.nodes) {
    const bool is_forward = node.stage == JointStage::kForward;
    (is_forward ? plan.forward_ms : plan.backward_ms) += node.ms;
  }
  return plan;
}

// Returns null if the value is not finite.
ordered_json Finite(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

// Returns the figures of a plan, without names.
ordered_json FiguresJson(const RematPlan& plan, const JointGraph& graph) {
  ordered_json json = {{"status", StatusName(plan)},
                       {"budget_bytes", plan.budget_bytes == kAnyPeak
                                            ? ordered_json(nullptr)
                                            : ordered_json(plan.budget_bytes)}};
  if (plan.kept_budget_bytes != std::numeric_limits<int64_t>::max())
    json["kept_budget_bytes"] = plan.kept_budget_bytes;
  if (plan.run) {
    const JointRun& run = *plan.run;
    json["peak_bytes"] = run.peak_bytes;
    json["peak_node"] =
        run.peak_step < 0
            ? ordered_json(nullptr)
            : ordered_json(graph.nodes[run.steps[run.peak_step].node].name);
    json["saved_bytes"] = run.kept_bytes;
    json["recompute_ms"] = run.recompute_ms;
    if (plan.link) {
      json["stall_ms"] = plan.stall_ms;
      json["moved_bytes"] = plan.moved_bytes;
    }
  }
  if (plan.link) json.update(RatesJson(plan.link->rates));
  if (!plan.is_given) {
    json["bound_ms"] = Finite(plan.bound_ms);
    if (plan.run) {
      const double cost_ms = plan.CostMs();
      json["gap"] = cost_ms > 0 ? 1 - plan.bound_ms / cost_ms : 0.0;
    }
  }
  json["baseline_peak_bytes"] = plan.baseline_peak_bytes;
  json["forward_ms"] = plan.forward_ms;
  json["backward_ms"] = plan.backward_ms;
  if (plan.least) {
    json["least_bytes"] = plan.least->bytes;
    json["least_bound_bytes"] = plan.least->bound_bytes;
  }
  json["seconds"] = plan.seconds;
  json["labels"] = plan.labels;
  json["cuts"] = plan.cuts;
  return json;
}

ordered_json MemoryJson(const JointRun& run, const JointGraph& graph) {
  ordered_json memory = ordered_json::array();
  for (size_t s = 0; s < run.steps.size(); ++s) {
    const JointRun::Step& step = run.steps[s];
    memory.push_back({{"node", graph.nodes[step.node].name},
                      {"pass", step.is_backward ? "backward" : "forward"},
                      {"again", step.is_again},
                      {"bytes", run.live_bytes[s]}});
  }
  return memory;
}

// Returns the name of the node before whose step something happens, or null for
// the end of the pass that the step before it is in.
ordered_json StepName(const JointRun& run, const JointGraph& graph, int32_t s,
                      bool is_backward) {
  const bool is_step =
      s < std::ssize(run.steps) && run.steps[s].is_backward == is_backward;
  return is_step ? ordered_json(graph.nodes[run.steps[s].node].name)
                 : ordered_json(nullptr);
}

ordered_json MovedJson(const JointRun& run, const JointGraph& graph) {
  ordered_json moves = ordered_json::array();
  for (const graph::JointMove& move : run.moves) {
    moves.push_back(
        {{"buffer", graph.buffers[move.buffer].name},
         {"release_before", StepName(run, graph, move.release, false)},
         {"fetch_before", StepName(run, graph, move.fetch, true)}});
  }
  return moves;
}

using IndexOfName = std::unordered_map<std::string_view, int32_t>;

// Reads a name, or null, which stands for `otherwise`.
int32_t ReadPlace(const graph::JsonField& field, const IndexOfName& places,
                  int32_t otherwise) {
  if (field.IsNull()) return otherwise;
  const auto place = places.find(field.String());
  if (place == places.end())
    field.Fail("the name of a node that the pass runs");
  return place->second;
}

std::vector<graph::JointMove> ReadMoves(const graph::JsonField& field,
                                        const JointGraph& graph,
                                        const JointRun& run,
                                        const IndexOfName& buffers) {
  IndexOfName forward;
  IndexOfName backward;
  for (int32_t s = 0; s < std::ssize(run.steps); ++s) {
    const JointRun::Step& step = run.steps[s];
    (step.is_backward ? backward : forward)
        .emplace(graph.nodes[step.node].name, s);
  }
  std::vector<graph::JointMove> moves;
  for (const graph::JsonField& element : field.Elements()) {
    const graph::JsonField name = element.Get("buffer");
    const auto buffer = buffers.find(name.String());
    if (buffer == buffers.end()) name.Fail("the name of a buffer of the graph");
    moves.push_back(
        {.buffer = buffer->second,
         .release = ReadPlace(element.Get("release_before"), forward,
                              graph::FirstOfBackward(run)),
         .fetch = ReadPlace(element.Get("fetch_before"), backward,
                            static_cast<int32_t>(run.steps.size()))});
  }
  return moves;
}

// Plans with moves.
void PlanMoves(const RematProblem& problem, const RematQuestion& question,
               const solver::LimitClock& clock, RematPlan& plan) {
  RematOffload answer = SolveRematOffload(problem, question, *plan.link);
  plan.bound_ms = answer.bound_ms;
  plan.labels = answer.tries;
  plan.stopped_by = answer.stopped_by;
  if (answer.best) {
    CheckRemat(*problem.graph, question.budget_bytes, answer.best->run);
    const double cost_ms = answer.best->CostMs();
    const double rounding_ms = 1e-9 * std::min(1.0, problem.AllMs());
    const bool is_proven = plan.bound_ms >= cost_ms - rounding_ms;
    plan.status = is_proven ? SearchStatus::kOptimal : SearchStatus::kFeasible;
    if (is_proven) plan.bound_ms = cost_ms;
    const bool is_ended = plan.stopped_by == solver::StoppedBy::kNothing;
    if (!is_proven && is_ended) plan.stopped_by = solver::StoppedBy::kUnproven;
    plan.stall_ms = answer.best->stall_ms;
    plan.run = std::move(answer.best->run);
    plan.moved_bytes = graph::MovedBytes(*problem.graph, *plan.run);
    return;
  }
  const std::optional<LeastMoved> least =
      FindLeastMoved(problem, *plan.link, clock.Remaining());
  if (!least) return;
  plan.least = {.bytes = least->bytes,
                .is_kept = least->run.is_kept,
                .bound_bytes = least->bound_bytes};
  if (question.budget_bytes < least->bound_bytes) {
    plan.status = SearchStatus::kInfeasible;
    plan.bound_ms = std::numeric_limits<double>::infinity();
  }
}

}  // namespace

int64_t RematBaseline(const JointGraph& graph) {
  const graph::JointSimulator simulator(graph);
  return simulator.Run(simulator.AllKept()).peak_bytes;
}

RematPlan PlanRemat(const JointGraph& graph, const RematQuestion& question,
                    const std::optional<LinkLimits>& link) {
  RematPlan plan = PlanOn(graph);
  const solver::LimitClock clock(question.limits);
  const RematProblem problem = BuildRematProblem(graph);
  if (link) {
    plan.budget_bytes = question.budget_bytes;
    plan.link = link;
    PlanMoves(problem, question, clock, plan);
    plan.seconds = clock.Seconds();
    return plan;
  }
  RematAnswer answer = SolveRemat(problem, question);
  plan.budget_bytes = question.budget_bytes;
  plan.kept_budget_bytes = question.kept_bytes;
  plan.status = answer.status;
  plan.stopped_by = answer.stopped_by;
  plan.bound_ms = answer.bound_ms;
  plan.labels = answer.labels;
  plan.cuts = answer.cuts;
  const bool is_found = answer.status == SearchStatus::kOptimal ||
                        answer.status == SearchStatus::kFeasible;
  if (is_found) {
    CheckRemat(graph, question.budget_bytes, answer.run);
    if (answer.run.kept_bytes > question.kept_bytes)
      throw std::logic_error("the plan fails its check: it keeps too much");
    plan.run = std::move(answer.run);
  } else {
    solver::SearchLimits remaining_limits = clock.Remaining();
    remaining_limits.on_progress = {};
    remaining_limits.time_limit_s =
        std::min(remaining_limits.time_limit_s, kLeastSeconds);
    const LeastRematBudget least = FindLeastRematBudget(
        problem, remaining_limits, kLeastTolerance, question.kept_bytes);
    if (least.exists) plan.least = least;
  }
  plan.seconds = clock.Seconds();
  return plan;
}

RematPlan EvaluateRemat(const JointGraph& graph, const RematChoices& choices) {
  const solver::Stopwatch stopwatch;
  RematPlan plan = PlanOn(graph);
  plan.is_given = true;
  plan.link = choices.link;
  plan.run = graph::WithMoves(
      graph, graph::JointSimulator(graph).Run(choices.is_kept), choices.moves);
  plan.budget_bytes = plan.run->peak_bytes;
  CheckRemat(graph, plan.budget_bytes, *plan.run);
  plan.moved_bytes = graph::MovedBytes(graph, *plan.run);
  if (choices.link)
    plan.stall_ms = StallMs(graph, *plan.run, choices.link->rates);
  plan.seconds = stopwatch.Seconds();
  return plan;
}

RematChoices ReadRematChoices(const std::filesystem::path& path,
                              const JointGraph& graph) {
  const nlohmann::json document =
      graph::ParseJson(graph::ReadJsonText(path), path.string());
  const graph::JsonField root(document, path.string());
  IndexOfName index;
  for (int32_t b = 0; b < std::ssize(graph.buffers); ++b)
    index.emplace(graph.buffers[b].name, b);
  RematChoices choices{.is_kept = std::vector<char>(graph.buffers.size(), 0)};
  for (const graph::JsonField& name : root.Get("saved").Elements()) {
    const auto buffer = index.find(name.String());
    if (buffer == index.end()) name.Fail("the name of a buffer of the graph");
    choices.is_kept[buffer->second] = 1;
  }
  if (!root.Has("moved")) return choices;
  choices.link = LinkLimits{.rates = ReadRates(root)};
  try {
    const JointRun run = graph::JointSimulator(graph).Run(choices.is_kept);
    choices.moves = ReadMoves(root.Get("moved"), graph, run, index);
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("{}: {}", graph::OneLine(path.string()), error.what()));
  }
  return choices;
}

std::vector<RematPlan> RematFrontier(const JointGraph& graph, int points,
                                     const solver::SearchLimits& limits) {
  const solver::LimitClock clock(limits);
  const RematProblem problem = BuildRematProblem(graph);
  const auto left_for = [&](int parts) {
    solver::SearchLimits remaining_limits = clock.Remaining();
    remaining_limits.time_limit_s /= parts;
    return remaining_limits;
  };
  solver::SearchLimits of_least = left_for(points + 1);
  of_least.on_progress = {};
  const LeastRematBudget least = FindLeastRematBudget(problem, of_least);
  std::vector<RematPlan> plans;
  if (!least.exists) return plans;
  const int64_t most = RematBaseline(graph);
  std::vector<char> start = least.is_kept;
  for (int p = 0; p < points; ++p) {
    const double share =
        points == 1 ? 1 : static_cast<double>(p) / (points - 1);
    const int64_t budget =
        p + 1 == points
            ? std::max(most, least.bytes)
            : least.bytes +
                  static_cast<int64_t>(share *
                                       static_cast<double>(most - least.bytes));
    plans.push_back(PlanRemat(graph, {.budget_bytes = budget,
                                      .limits = left_for(points - p),
                                      .start = start}));
    if (p == 0) plans.back().least = least;
    if (plans.back().run) start = plans.back().run->is_kept;
  }
  return plans;
}

std::string RematFrontierToJson(const std::vector<RematPlan>& plans,
                                const JointGraph& graph) {
  ordered_json json = {{"format", "acplan.remat_frontier"},
                       {"version", 1},
                       {"model", graph.model.name},
                       {"points", ordered_json::array()}};
  for (const RematPlan& plan : plans)
    json["points"].push_back(FiguresJson(plan, graph));
  return graph::IndentedText(json);
}

std::string RematToJson(const RematPlan& plan, const JointGraph& graph,
                        bool has_memory) {
  ordered_json json = {
      {"format", "acplan.remat"}, {"version", 1}, {"model", graph.model.name}};
  json.update(FiguresJson(plan, graph));
  if (plan.run) {
    const JointRun& run = *plan.run;
    json["saved"] = ordered_json::array();
    for (size_t b = 0; b < run.is_kept.size(); ++b)
      if (run.is_kept[b]) json["saved"].push_back(graph.buffers[b].name);
    if (plan.link) json["moved"] = MovedJson(run, graph);
    json["recomputed"] = ordered_json::array();
    for (const JointRun::Step& step : run.steps)
      if (step.is_again)
        json["recomputed"].push_back(graph.nodes[step.node].name);
    if (has_memory) json["memory"] = MemoryJson(run, graph);
  }
  return graph::IndentedText(json);
}

}  // namespace acplan::problems
