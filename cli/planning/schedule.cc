#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/planning/stopped_text.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/schedule/node_link.h"
#include "graph/schedule/schedule_graph.h"
#include "problems/schedule_plan.h"

namespace acplan::cli {

using graph::ScheduleGraph;
using problems::SchedulePlan;
using solver::SearchStatus;

namespace {

// The default of --time-limit.
constexpr double kScheduleSeconds = 30;
// The number of operators that the table lists.
constexpr size_t kMostRows = 12;

struct ScheduleFlags {
  std::string graph;
  std::string budget;
  std::string frontier;
  std::string time_limit;
  std::string gap;
  std::string output;
  bool json = false;
  bool memory = false;
};

// Returns a time in the file's unit, which may have no name.
std::string TimeText(double time, const ScheduleGraph& graph) {
  if (graph.time_unit == "ms") return FormatMs(time);
  return time == std::floor(time) && time < 1e15
             ? FormatCount(static_cast<int64_t>(time))
             : fmt::format("{:.6g}", time);
}

std::string Heading(const SchedulePlan& plan, const ScheduleGraph& graph,
                    const Terminal& terminal) {
  const std::string name =
      graph.name.empty() ? "graph" : graph::OneLine(graph.name);
  return fmt::format("{}, {} operators, any schedule\nbudget {}\n\n",
                     terminal.Bold(name), FormatCount(std::ssize(graph.nodes)),
                     FormatBytesExactly(plan.budget_bytes));
}

std::string Comparison(const SchedulePlan& plan, const ScheduleGraph& graph,
                       const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  const double again_time = plan.run->recompute_ms;
  table.AddRow({"", "run once", "schedule", "change"});
  table.AddRow({"peak memory", graph::FormatBytes(plan.baseline_peak_bytes),
                graph::FormatBytes(plan.run->peak_bytes),
                FormatChange(static_cast<double>(plan.baseline_peak_bytes),
                             static_cast<double>(plan.run->peak_bytes))});
  table.AddRow(
      {"step time", TimeText(plan.step_ms, graph),
       TimeText(plan.step_ms + again_time, graph),
       plan.step_ms > 0
           ? fmt::format("+{}", FormatPercentUp(again_time / plan.step_ms))
           : ""});
  table.AddRow({"recomputed", "", TimeText(again_time, graph), ""});
  table.AddRow({"runs", FormatCount(std::ssize(graph.nodes)),
                FormatCount(std::ssize(plan.run->sequence)), ""});
  return table.ToString(terminal) + "\n";
}

// Returns a table of the operators that run again, the most time first.
std::string Operators(const SchedulePlan& plan, const ScheduleGraph& graph,
                      const Terminal& terminal) {
  std::vector<int64_t> times(graph.nodes.size(), -1);
  for (const int32_t node : plan.run->sequence) ++times[node];
  std::vector<int32_t> repeated_nodes;
  for (int32_t n = 0; n < std::ssize(times); ++n)
    if (times[n] > 0) repeated_nodes.push_back(n);
  if (repeated_nodes.empty()) return "No operator runs again.\n\n";
  const auto spent = [&](int32_t n) {
    return static_cast<double>(times[n]) * graph.nodes[n].ms;
  };
  std::ranges::stable_sort(repeated_nodes, std::greater(), spent);
  using enum Table::Align;
  Table table({kLeft, kRight, kRight});
  table.AddRow({"operator", "run again", "recomputed"});
  const size_t rows = repeated_nodes.size() <= kMostRows ? repeated_nodes.size()
                                                         : kMostRows - 1;
  int64_t other_runs = 0;
  double other_time = 0;
  for (size_t i = 0; i < repeated_nodes.size(); ++i) {
    const int32_t n = repeated_nodes[i];
    if (i < rows) {
      table.AddRow({graph::OneLine(graph.nodes[n].name, 60),
                    FormatCount(times[n]), TimeText(spent(n), graph)});
    } else {
      other_runs += times[n];
      other_time += spent(n);
    }
  }
  if (rows < repeated_nodes.size()) {
    const size_t others = repeated_nodes.size() - rows;
    table.AddRow({fmt::format("{} other{}", others, others == 1 ? "" : "s"),
                  FormatCount(other_runs), TimeText(other_time, graph)});
  }
  return table.ToString(terminal) + "\n";
}

std::string Verdict(const SchedulePlan& plan, const ScheduleGraph& graph,
                    const Terminal& terminal) {
  const problems::ScheduleAnswer& answer = plan.answer;
  const std::string effort =
      fmt::format("{:.3f} s, {} moments in {} models, {} tries", plan.seconds,
                  FormatCount(answer.moments), FormatCount(answer.models),
                  FormatCount(answer.tries));
  switch (answer.status) {
    case SearchStatus::kOptimal:
      return terminal.Green("optimal") +
             fmt::format(
                 ": no schedule within the budget recomputes less (gap 0, "
                 "{})\n",
                 effort);
    case SearchStatus::kFeasible:
      return terminal.Yellow("feasible") +
             fmt::format(
                 ", {}: no schedule recomputes less than {} (gap {}, {})\n",
                 StoppedText(answer.stopped_by),
                 TimeText(answer.bound_ms, graph),
                 FormatPercentUp(1 - answer.bound_ms / answer.recompute_ms),
                 effort);
    case SearchStatus::kInfeasible:
      return terminal.Yellow("infeasible") +
             fmt::format(": no schedule fits in {}\n",
                         FormatBytesExactly(plan.budget_bytes)) +
             (answer.least_bytes > 0
                  ? fmt::format("the largest operator alone needs {}\n",
                                FormatBytesExactly(answer.least_bytes))
                  : "");
    case SearchStatus::kNoSolution:
      break;
  }
  return terminal.Yellow("no schedule") +
         fmt::format(": {} before one was found ({})\n",
                     StoppedText(answer.stopped_by), effort);
}

solver::SearchLimits Limits(const ScheduleFlags& flags) {
  return {.time_limit_s = flags.time_limit.empty()
                              ? kScheduleSeconds
                              : ParseTimeLimit(flags.time_limit),
          .gap = flags.gap.empty() ? 0 : ParseNumber(flags.gap, "--gap", 0, 1),
          .interrupted = &InterruptFlag()};
}

int64_t Budget(const ScheduleFlags& flags, const ScheduleGraph& graph) {
  const problems::Budget budget =
      ParseBudget(flags.budget, "--budget", /*may_be_tiny=*/true);
  if (budget.kind != problems::Budget::Kind::kMinimum) {
    return budget.Bytes(problems::ScheduleBaseline(graph));
  }
  throw InputError(
      "--budget: expected a size or a share of any schedule, found min");
}

// Returns "best 2.30%  bound 2.10%  12 tries  2.0 s", in shares of the step's
// time.
std::string Progress(const solver::SearchProgress& progress, double step) {
  const auto share = [&](double time) {
    return std::isfinite(time) && step > 0
               ? fmt::format("{:.2f}%", 100 * time / step)
               : std::string("none");
  };
  return fmt::format("best {}  bound {}  {} tries  {:.1f} s",
                     share(progress.best), share(progress.bound),
                     FormatCount(progress.nodes), progress.seconds);
}

SchedulePlan FindSchedule(const ScheduleFlags& flags,
                          const ScheduleGraph& graph,
                          const Terminal& terminal) {
  ProgressLine line(terminal);
  double step = 0;
  for (const graph::ScheduleNode& node : graph.nodes) step += node.ms;
  solver::SearchLimits limits = Limits(flags);
  limits.on_progress = [&](const solver::SearchProgress& progress) {
    line.Show(progress.seconds, [&] { return Progress(progress, step); });
  };
  return problems::PlanSchedule(graph, {.budget_bytes = Budget(flags, graph),
                                        .limits = std::move(limits)});
}

std::string FrontierTable(const std::vector<SchedulePlan>& plans,
                          const ScheduleGraph& graph,
                          const Terminal& terminal) {
  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight, kRight, kLeft, kRight});
  table.AddRow(
      {"budget", "peak", "recomputed", "of the step", "lower bound", "", "s"});
  for (const SchedulePlan& plan : plans) {
    std::vector<std::string> row = {graph::FormatBytes(plan.budget_bytes)};
    if (plan.run) {
      const double again_time = plan.run->recompute_ms;
      row.push_back(graph::FormatBytes(plan.run->peak_bytes));
      row.push_back(TimeText(again_time, graph));
      row.push_back(
          plan.step_ms > 0 ? FormatPercentUp(again_time / plan.step_ms) : "");
      row.push_back(TimeText(plan.answer.bound_ms, graph));
    } else {
      row.insert(row.end(), 4, "");
    }
    const SearchStatus status = plan.answer.status;
    row.push_back(status == SearchStatus::kOptimal      ? "optimal"
                  : status == SearchStatus::kFeasible   ? "feasible"
                  : status == SearchStatus::kInfeasible ? "infeasible"
                                                        : "no schedule");
    row.push_back(fmt::format("{:.2f}", plan.seconds));
    table.AddRow(std::move(row));
  }
  return table.ToString(terminal);
}

int RunFrontier(const ScheduleFlags& flags, const ScheduleGraph& graph,
                const Terminal& terminal) {
  const auto points =
      static_cast<int>(ParseWhole(flags.frontier, "--frontier", 2, 1000));
  const std::vector<SchedulePlan> plans =
      problems::ScheduleFrontier(graph, points, Limits(flags));
  const std::string json = ScheduleFrontierToJson(plans, graph);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json : FrontierTable(plans, graph, terminal));
  return kExitOk;
}

// Throws InputError for flags that do not go together.
void CheckFlags(const ScheduleFlags& flags) {
  if (flags.budget.empty() == flags.frontier.empty()) {
    throw InputError("--budget: expected one of --budget and --frontier");
  }
  const bool has_json = flags.json || !flags.output.empty();
  if (flags.memory && (!flags.frontier.empty() || !has_json)) {
    throw InputError(
        "--memory: needs --json or --output, and cannot be combined with "
        "--frontier");
  }
}

int RunSchedule(const ScheduleFlags& flags, const Terminal& terminal) {
  CheckFlags(flags);
  const ScheduleGraph graph = graph::ReadScheduleGraph(flags.graph);
  if (!flags.frontier.empty()) return RunFrontier(flags, graph, terminal);
  const SchedulePlan plan = FindSchedule(flags, graph, terminal);
  const std::string json = ScheduleToJson(plan, graph, flags.memory);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  std::string text = Heading(plan, graph, terminal);
  if (plan.run)
    text +=
        Comparison(plan, graph, terminal) + Operators(plan, graph, terminal);
  text += Verdict(plan, graph, terminal);
  terminal.Print(flags.json ? json : BrokenLines(text, terminal));
  if (plan.run) return kExitOk;
  return plan.answer.status == SearchStatus::kInfeasible ? kExitInfeasible
                                                         : kExitLimit;
}

}  // namespace

Command AddScheduleCommand(CLI::App& program) {
  auto flags = std::make_shared<ScheduleFlags>();
  CLI::App* app = program.add_subcommand(
      "schedule", "Find the schedule of a graph with the least recomputation");
  app->add_option("GRAPH", flags->graph,
                  "joint graph of forward and backward, or a node-link graph "
                  "(.json or .json.gz)")
      ->required();
  app->add_option("-b,--budget", flags->budget,
                  "limit of the peak memory: 20GiB; 75%: of the peak if every "
                  "operator runs once")
      ->type_name("SIZE");
  app->add_option("--frontier", flags->frontier,
                  "find schedules at this many budgets, evenly spaced from the "
                  "smallest that any schedule may need")
      ->type_name("POINTS");
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for the search (30); none: no limit")
      ->type_name("SECONDS");
  app->add_option("--gap", flags->gap,
                  "stop within this share of the optimum, 0 (default) to 1")
      ->type_name("SHARE");
  app->add_flag("--memory", flags->memory,
                "add the bytes in use at every run to the JSON");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "An operator may run again at any time, any number of times.\nExample:\n "
      " acplan schedule example:joint/gpt2_tiny --budget 75%\nExit "
      "status: 0 a schedule was found, 2 bad input, 3 infeasible, 4 a limit "
      "was hit without a schedule.");
  return {app, [flags](const Terminal& terminal) {
            return RunSchedule(*flags, terminal);
          }};
}

}  // namespace acplan::cli
