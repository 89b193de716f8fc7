#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/planning/link_flags.h"
#include "cli/planning/stopped_text.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/joint/joint_graph.h"
#include "graph/schedule/node_link.h"
#include "problems/remat/remat_offload.h"
#include "problems/remat/remat_problem.h"
#include "problems/remat_plan.h"

namespace acplan::cli {

using graph::JointGraph;
using graph::JointRun;
using problems::RematPlan;
using solver::SearchStatus;

namespace {

// The default of --time-limit.
constexpr double kRematSeconds = 30;
// The share of it for the least budget.
constexpr double kLeastShare = 0.5;

struct RematFlags {
  std::string graph;
  std::string budget;
  std::string kept_size;
  std::string saved_file;
  std::string frontier;
  std::string time_limit;
  std::string gap;
  std::string output;
  LinkFlags link;
  bool json = false;
  bool memory = false;
};

std::string Heading(const JointGraph& graph, const RematPlan& plan,
                    const Terminal& terminal) {
  const std::string name =
      graph.model.name.empty() ? "graph" : graph::OneLine(graph.model.name);
  const bool is_any_peak = plan.budget_bytes == problems::kAnyPeak;
  std::string text = fmt::format(
      "{}, {} nodes of forward and backward\nbudget {}", terminal.Bold(name),
      FormatCount(std::ssize(graph.nodes)),
      is_any_peak ? "any peak" : FormatBytesExactly(plan.budget_bytes));
  if (plan.kept_budget_bytes != std::numeric_limits<int64_t>::max())
    text +=
        fmt::format(", {} kept", FormatBytesExactly(plan.kept_budget_bytes));
  return text + "\n\n";
}

std::string Comparison(const RematPlan& plan, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  const double step = plan.forward_ms + plan.backward_ms;
  const JointRun& run = *plan.run;
  table.AddRow({"", "keep all", "plan", "change"});
  table.AddRow({"peak memory", graph::FormatBytes(plan.baseline_peak_bytes),
                graph::FormatBytes(run.peak_bytes),
                FormatChange(static_cast<double>(plan.baseline_peak_bytes),
                             static_cast<double>(run.peak_bytes))});
  table.AddRow({"step time", FormatMs(step), FormatMs(step + plan.CostMs()),
                step > 0
                    ? fmt::format("+{}", FormatPercentUp(plan.CostMs() / step))
                    : ""});
  table.AddRow({"recomputed", "", FormatMs(run.recompute_ms), ""});
  if (plan.link) {
    table.AddRow(
        {"moved to the host", "", graph::FormatBytes(plan.moved_bytes), ""});
    table.AddRow({"waits for the link", "", FormatMs(plan.stall_ms), ""});
  }
  return table.ToString(terminal) + "\n";
}

// Returns a table, by operator, of kept results and repeated runs, the most
// first.
std::string Operators(const JointGraph& graph, const RematPlan& plan,
                      const Terminal& terminal) {
  struct Sums {
    int64_t kept_count = 0;
    int64_t kept_bytes = 0;
    int64_t again_count = 0;
    double ms = 0;
  };
  const JointRun& run = *plan.run;
  std::map<std::string, Sums> by_op;
  for (const graph::JointNode& node : graph.nodes) {
    for (const int32_t b : node.makes) {
      if (!run.is_kept[b]) continue;
      Sums& sums = by_op[node.op];
      ++sums.kept_count;
      sums.kept_bytes += graph.buffers[b].bytes;
    }
  }
  std::vector<char> is_forward(graph.nodes.size(), 0);
  for (const JointRun::Step& step : run.steps) {
    if (!step.is_backward) is_forward[step.node] = 1;
    // A node that only backward runs does not run a second time.
    if (!step.is_again || !is_forward[step.node]) continue;
    Sums& sums = by_op[graph.nodes[step.node].op];
    ++sums.again_count;
    sums.ms += graph.nodes[step.node].ms;
  }
  if (by_op.empty()) return "No buffer is kept.\n\n";
  std::vector<std::pair<std::string, Sums>> rows(by_op.begin(), by_op.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) {
    return std::pair(-a.second.ms, -a.second.kept_bytes) <
           std::pair(-b.second.ms, -b.second.kept_bytes);
  });
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight});
  table.AddRow({"operator", "kept", "bytes", "run again", "recomputed"});
  Sums all;
  for (const auto& [op, sums] : rows) {
    table.AddRow({op.empty() ? "(unnamed)" : graph::OneLine(op, 60),
                  FormatCount(sums.kept_count),
                  graph::FormatBytes(sums.kept_bytes),
                  FormatCount(sums.again_count), FormatMs(sums.ms)});
    all.kept_count += sums.kept_count;
    all.again_count += sums.again_count;
  }
  table.AddRule();
  table.AddRow({"in all", FormatCount(all.kept_count),
                graph::FormatBytes(run.kept_bytes),
                FormatCount(all.again_count), FormatMs(run.recompute_ms)});
  return table.ToString(terminal) + "\n";
}

std::string LeastText(const RematPlan& plan) {
  std::string text = ": no plan keeps this few bytes\n";
  if (plan.budget_bytes != problems::kAnyPeak) {
    text = fmt::format(": no plan fits in {}\n",
                       FormatBytesExactly(plan.budget_bytes));
  }
  if (plan.least) {
    text += fmt::format("a plan fits in {}; none in less than {}\n",
                        FormatBytesExactly(plan.least->bytes),
                        FormatBytesExactly(plan.least->bound_bytes));
  } else {
    text += "no plan of any peak is known that does\n";
  }
  return text;
}

std::string Verdict(const RematPlan& plan, const Terminal& terminal) {
  if (plan.is_given) return "evaluated as given, without a search\n";
  const std::string effort =
      fmt::format("{:.3f} s, {} {}", plan.seconds, FormatCount(plan.labels),
                  plan.link ? "plans tried" : "labels");
  const std::string_view verb =
      plan.link ? "recomputes and waits" : "recomputes";
  switch (plan.status) {
    case SearchStatus::kOptimal:
      return terminal.Green("optimal") +
             fmt::format(": no plan within the budget {} less (gap 0, {})\n",
                         verb, effort);
    case SearchStatus::kFeasible:
      return terminal.Yellow("feasible") +
             fmt::format(
                 ", {}: no plan {} less than {} (gap {}, {})\n",
                 StoppedText(plan.stopped_by), verb, FormatMs(plan.bound_ms),
                 FormatPercentUp(1 - plan.bound_ms / plan.CostMs()), effort);
    case SearchStatus::kInfeasible:
      return terminal.Yellow("infeasible") + LeastText(plan);
    case SearchStatus::kNoSolution:
      break;
  }
  return terminal.Yellow("no plan") +
         fmt::format(": {} before one was found ({})\n",
                     StoppedText(plan.stopped_by), effort);
}

// Returns the value of --kept, without which any number of bytes may be kept.
int64_t KeptBytes(const RematFlags& flags) {
  return flags.kept_size.empty() ? std::numeric_limits<int64_t>::max()
         : flags.kept_size == "0"
             ? 0
             : graph::ParseByteSize(flags.kept_size, "--kept");
}

// Finds the least budget within a share of the time.
problems::LeastRematBudget Least(const RematFlags& flags,
                                 const JointGraph& graph,
                                 const solver::SearchLimits& limits) {
  solver::SearchLimits half = limits;
  half.time_limit_s *= kLeastShare;
  half.on_progress = {};
  const problems::RematProblem problem = problems::BuildRematProblem(graph);
  const std::optional<problems::LinkLimits> link = flags.link.Parse();
  if (!link)
    return FindLeastRematBudget(problem, half, problems::kLeastTolerance,
                                KeptBytes(flags));
  std::optional<problems::LeastMoved> least =
      FindLeastMoved(problem, *link, half);
  if (!least) return {.exists = false};
  return {.bytes = least->bytes,
          .is_kept = std::move(least->run.is_kept),
          .bound_bytes = least->bound_bytes};
}

// The budget and, if it is the least one, the search's answer.
struct ResolvedBudget {
  int64_t bytes = problems::kAnyPeak;
  std::optional<problems::LeastRematBudget> least = {};
};

ResolvedBudget Resolve(const RematFlags& flags, const JointGraph& graph,
                       const solver::SearchLimits& limits,
                       const Terminal& terminal) {
  if (flags.budget.empty()) return {};
  const problems::Budget budget =
      ParseBudget(flags.budget, "--budget", /*may_be_tiny=*/true);
  if (budget.kind != problems::Budget::Kind::kMinimum) {
    return {.bytes = budget.Bytes(problems::RematBaseline(graph))};
  }
  const problems::LeastRematBudget least = Least(flags, graph, limits);
  if (!least.exists) throw LimitError("budget min: no valid plan was found");
  if (least.bound_bytes < least.bytes) {
    terminal.Warn(
        fmt::format("budget min: a plan fits in {}, none in less than {}",
                    FormatBytesExactly(least.bytes),
                    FormatBytesExactly(least.bound_bytes)));
  }
  return {.bytes = least.bytes, .least = least};
}

solver::SearchLimits Limits(const RematFlags& flags) {
  return {.time_limit_s = flags.time_limit.empty()
                              ? kRematSeconds
                              : ParseTimeLimit(flags.time_limit),
          .gap = flags.gap.empty() ? 0 : ParseNumber(flags.gap, "--gap", 0, 1),
          .interrupted = &InterruptFlag()};
}

std::string InFile(const std::string& path, std::string_view message) {
  return fmt::format("{}: {}", graph::OneLine(path), message);
}

// Evaluates the plan in the file that --of names.
RematPlan PlanOfFile(const RematFlags& flags, const JointGraph& graph) {
  const problems::RematChoices choices =
      problems::ReadRematChoices(flags.saved_file, graph);
  try {
    return problems::EvaluateRemat(graph, choices);
  } catch (const InputError& error) {
    throw InputError(InFile(flags.saved_file, error.what()));
  }
}

RematPlan Answer(const RematFlags& flags, const JointGraph& graph,
                 const Terminal& terminal) {
  if (!flags.saved_file.empty()) return PlanOfFile(flags, graph);
  ProgressLine progress(terminal);
  solver::SearchLimits limits = Limits(flags);
  limits.on_progress = [&](const solver::SearchProgress& p) {
    progress.Show(p.seconds, [&] { return ProgressText(p); });
  };
  const solver::Stopwatch stopwatch;
  const ResolvedBudget budget = Resolve(flags, graph, limits, terminal);
  // The search for the least budget leaves its share of the time.
  const double spent_s =
      std::min(stopwatch.Seconds(), kLeastShare * limits.time_limit_s);
  problems::RematQuestion question{.budget_bytes = budget.bytes,
                                   .kept_bytes = KeptBytes(flags),
                                   .limits = solver::LeftOf(limits, spent_s)};
  if (budget.least) question.start = budget.least->is_kept;
  RematPlan plan = problems::PlanRemat(graph, question, flags.link.Parse());
  if (budget.least) plan.least = budget.least;
  return plan;
}

std::string FrontierTable(const std::vector<RematPlan>& plans,
                          const Terminal& terminal) {
  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight, kRight, kLeft, kRight});
  table.AddRow(
      {"budget", "peak", "kept", "recomputed", "lower bound", "", "s"});
  for (const RematPlan& plan : plans) {
    std::vector<std::string> row = {graph::FormatBytes(plan.budget_bytes)};
    if (plan.run) {
      row.push_back(graph::FormatBytes(plan.run->peak_bytes));
      row.push_back(graph::FormatBytes(plan.run->kept_bytes));
      row.push_back(FormatMs(plan.run->recompute_ms));
      row.push_back(FormatMs(plan.bound_ms));
    } else {
      row.insert(row.end(), 4, "");
    }
    row.push_back(plan.status == SearchStatus::kOptimal    ? "optimal"
                  : plan.status == SearchStatus::kFeasible ? "feasible"
                                                           : "no plan");
    row.push_back(fmt::format("{:.2f}", plan.seconds));
    table.AddRow(std::move(row));
  }
  return table.ToString(terminal);
}

int RunFrontier(const RematFlags& flags, const JointGraph& graph,
                const Terminal& terminal) {
  const auto points =
      static_cast<int>(ParseWhole(flags.frontier, "--frontier", 2, 1000));
  const std::vector<RematPlan> plans =
      problems::RematFrontier(graph, points, Limits(flags));
  if (plans.empty()) throw LimitError("--frontier: no valid plan was found");
  const std::string json = RematFrontierToJson(plans, graph);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json : FrontierTable(plans, terminal));
  return kExitOk;
}

// Throws InputError for flags that contradict each other.
void CheckFlags(const RematFlags& flags) {
  const bool has_budget = !flags.budget.empty() || !flags.kept_size.empty();
  const int question_count = (has_budget ? 1 : 0) +
                             (flags.saved_file.empty() ? 0 : 1) +
                             (flags.frontier.empty() ? 0 : 1);
  if (question_count != 1)
    throw InputError(
        "--budget: expected one of --budget (or --kept), --of and --frontier");
  for (const auto& [name, value] :
       {std::pair("--gap", &flags.gap), {"--time-limit", &flags.time_limit}})
    if (!flags.saved_file.empty() && !value->empty())
      throw InputError(fmt::format("{}: cannot be combined with --of", name));
  for (const auto& [name, value] : {std::pair("--kept", &flags.kept_size),
                                    {"--of", &flags.saved_file},
                                    {"--frontier", &flags.frontier}})
    if (!flags.link.offload.empty() && !value->empty())
      throw InputError(
          fmt::format("--offload: cannot be combined with {}", name));
  flags.link.Parse();
  const bool has_json = flags.json || !flags.output.empty();
  if (flags.memory && (!flags.frontier.empty() || !has_json))
    throw InputError(
        "--memory: needs --json or --output, and cannot be combined with "
        "--frontier");
}

JointGraph ReadGraph(const RematFlags& flags) {
  const std::string text = graph::ReadJsonText(flags.graph);
  if (graph::IsNodeLink(text))
    throw InputError(
        InFile(flags.graph,
               "expected a joint graph, found a node-link graph, which 'acplan "
               "schedule' reads"));
  JointGraph graph = graph::ParseJointGraph(text, flags.graph);
  try {
    problems::RematBaseline(graph);
    problems::BuildRematProblem(graph);  // ties that contradict each other
    if (!flags.link.offload.empty()) problems::RefuseTies(graph);
  } catch (const InputError& error) {
    throw InputError(InFile(flags.graph, error.what()));
  }
  return graph;
}

int RunRemat(const RematFlags& flags, const Terminal& terminal) {
  CheckFlags(flags);
  const JointGraph graph = ReadGraph(flags);
  if (!flags.frontier.empty()) return RunFrontier(flags, graph, terminal);
  const RematPlan plan = Answer(flags, graph, terminal);
  const std::string json = RematToJson(plan, graph, flags.memory);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  std::string text = Heading(graph, plan, terminal);
  if (plan.run) {
    text += Comparison(plan, terminal) + Operators(graph, plan, terminal);
  }
  text += Verdict(plan, terminal);
  terminal.Print(flags.json ? json : BrokenLines(text, terminal));
  if (plan.run) return kExitOk;
  return plan.status == SearchStatus::kInfeasible ? kExitInfeasible
                                                  : kExitLimit;
}

}  // namespace

Command AddRematCommand(CLI::App& program) {
  auto flags = std::make_shared<RematFlags>();
  CLI::App* app = program.add_subcommand(
      "remat", "Choose which buffers a compiled step keeps for backward");
  app->add_option("GRAPH", flags->graph,
                  "joint graph of forward and backward (.json or .json.gz)")
      ->required();
  app->add_option(
         "-b,--budget", flags->budget,
         "limit of the peak memory: 20GiB; 75%: of the peak if everything is "
         "kept; min: the smallest budget that some plan meets")
      ->type_name("SIZE");
  app->add_option("--kept", flags->kept_size,
                  "keep at most SIZE for backward; without --budget, the peak "
                  "has no limit")
      ->type_name("SIZE");
  app->add_option("--of", flags->saved_file,
                  "evaluate the plan that keeps the buffers in `saved` of "
                  "FILE; no search")
      ->type_name("FILE");
  app->add_option("--frontier", flags->frontier,
                  "plan at this many budgets, evenly spaced from the smallest "
                  "feasible one")
      ->type_name("POINTS");
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for the search (30), with --offload for the plan "
                  "without moves and for the moves each; none: no limit")
      ->type_name("SECONDS");
  app->add_option("--gap", flags->gap,
                  "stop within this share of the optimum, 0 (default) to 1")
      ->type_name("SHARE");
  flags->link.AddTo(*app, "kept buffers", "; with --budget");
  app->add_flag("--memory", flags->memory,
                "add the bytes in use at every node to the JSON");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan remat example:joint/gpt2_tiny --budget "
      "75%\nExit status: 0 a plan was found, 2 bad input, 3 proven infeasible, "
      "4 a limit was hit without a plan.");
  return {app, [flags](const Terminal& terminal) {
            return RunRemat(*flags, terminal);
          }};
}

}  // namespace acplan::cli
