#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/link_flags.h"
#include "cli/planning/step_times.h"
#include "cli/planning/time_errors_text.h"
#include "cli/terminal/plot.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/ask.h"

namespace acplan::cli {

using problems::Budget;
using problems::FrontierAnswer;
using problems::FrontierBudgets;
using problems::Plan;
using problems::PlanStatus;

namespace {

// --time-limit where operators may be skipped, for all budgets together.
constexpr double kFrontierSeconds = 60;

struct FrontierFlags {
  std::string profile;
  std::string points;
  std::vector<std::string> budgets;
  PlanningFlags planning;
  LinkFlags link;
  bool csv = false;
  bool json = false;
  std::string output;
};

const problems::PlanningProblem& ProblemOf(const FrontierAnswer& answer) {
  return answer.families.front().problem;
}

const std::string& ModelOf(const FrontierAnswer& answer) {
  return ProblemOf(answer).profile->model.name;
}

double ShareOf(const FrontierAnswer& answer, int64_t bytes) {
  return static_cast<double>(bytes) /
         static_cast<double>(
             std::max<int64_t>(1, ProblemOf(answer).unplanned_peak_bytes));
}

// Returns whether plans may offload.
bool MayOffload(const FrontierAnswer& answer) {
  return std::ranges::any_of(
      answer.plans, [](const Plan& plan) { return plan.offload.has_value(); });
}

std::string ToCsv(const FrontierAnswer& answer) {
  const bool may_offload = MayOffload(answer);
  std::string text =
      "budget_bytes,budget_share,status,recompute_ms,bound_ms,gap,overhead,"
      "peak_bytes,units,seconds,nodes";
  text += may_offload ? ",stall_ms,host_bytes\n" : "\n";
  for (const Plan& plan : answer.plans) {
    text +=
        fmt::format("{},{},{},", plan.budget_bytes,
                    ShareOf(answer, plan.budget_bytes), ToString(plan.status));
    text += plan.HasPlan()
                ? fmt::format("{},{},{},{},{},{},", plan.recompute_ms,
                              plan.bound_ms, plan.gap, plan.overhead,
                              plan.peak_bytes, plan.modules.size())
                : std::string(",,,,,,");
    text += fmt::format("{},{}", plan.solver.seconds, plan.solver.nodes);
    if (may_offload) {
      text += plan.HasPlan() ? fmt::format(",{},{}", plan.offload->stall_ms,
                                           plan.offload->host_bytes)
                             : ",,";
    }
    text += "\n";
  }
  return text;
}

std::string ToJson(const FrontierAnswer& answer) {
  nlohmann::ordered_json json;
  json["format"] = "acplan.frontier";
  json["version"] = 1;
  json["model"] = ModelOf(answer);
  if (ProblemOf(answer).options.reserve_bytes > 0) {
    json["reserve_bytes"] = ProblemOf(answer).options.reserve_bytes;
  }
  json["world_size"] = ProblemOf(answer).options.memory.world_size;
  json["memory_model"] = ToString(ProblemOf(answer).options.memory.model);
  if (ProblemOf(answer).options.memory.without_states)
    json["without_states"] = true;
  json["granularity"] = ToString(ProblemOf(answer).options.granularity);
  json["tradeoff"] = ToString(ProblemOf(answer).options.tradeoff);
  json["unplanned_peak_bytes"] = ProblemOf(answer).unplanned_peak_bytes;
  if (answer.least.least.budget.proven) {
    json["minimum_budget_bytes"] = answer.least.least.budget.bytes;
  } else {
    json["fitting_budget_bytes"] = answer.least.least.budget.bytes;
    json["minimum_budget_bound_bytes"] = answer.least.least.budget.bound_bytes;
  }
  json["caveat"] = Caveat(ProblemOf(answer).options.memory.model);
  json["plans"] = nlohmann::ordered_json::array();
  for (const Plan& plan : answer.plans) {
    json["plans"].push_back(graph::ParseOrderedJson(PlanToJson(plan)));
  }
  return graph::IndentedText(json);
}

std::string Drawing(const FrontierAnswer& answer, const Terminal& terminal) {
  double most_ms = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = 0;
  for (const Plan& plan : answer.plans) {
    if (!plan.HasPlan()) continue;
    most_ms = std::max(most_ms, plan.recompute_ms);
    least = std::min(least, plan.budget_bytes);
    most = std::max(most, plan.budget_bytes);
  }
  if (most <= least || most_ms <= 0) return "";
  const Plot::Pen optimal{"●", Plot::Style::kGreen};
  const Plot::Pen feasible{"○", Plot::Style::kYellow};
  Plot plot;
  bool has_feasible = false;
  for (const Plan& plan : answer.plans) {
    if (!plan.HasPlan()) continue;
    const bool proven = plan.status == PlanStatus::kOptimal;
    has_feasible |= !proven;
    plot.AddPoint(static_cast<double>(plan.budget_bytes - least) /
                      static_cast<double>(most - least),
                  plan.recompute_ms / most_ms, proven ? optimal : feasible);
  }
  plot.AddLegend(optimal, "optimal");
  if (has_feasible) {
    plot.AddLegend(feasible,
                   MayOffload(answer) ? "not proven" : "stopped by a limit");
  }
  if (terminal.IsScreen()) {
    return plot.ToString(
               terminal,
               Plot::Axis::OfBytes("budget", static_cast<double>(least),
                                   static_cast<double>(most)),
               Plot::Axis::OfMs("recomputed", most_ms)) +
           "\n";
  }
  return plot.ToString(
             terminal,
             fmt::format("budget, {} to {}", graph::FormatBytes(least),
                         graph::FormatBytes(most)),
             fmt::format("recomputed, 0 to {}", FormatMs(most_ms))) +
         "\n";
}

// "20 budgets: 17 optimal, 3 infeasible (0.912 s, 1,053 labels)".
std::string Summary(const std::vector<Plan>& plans) {
  std::vector<std::string> counts;
  for (const auto& [status, name] :
       {std::pair(PlanStatus::kOptimal, "optimal"),
        std::pair(PlanStatus::kFeasible, "feasible"),
        std::pair(PlanStatus::kInfeasible, "infeasible"),
        std::pair(PlanStatus::kNoPlan, "without a plan")}) {
    const auto count = std::ranges::count(plans, status, &Plan::status);
    if (count > 0) counts.push_back(fmt::format("{} {}", count, name));
  }
  double seconds = 0;
  int64_t nodes = 0;
  for (const Plan& plan : plans) {
    seconds += plan.solver.seconds;
    nodes += plan.solver.nodes;
  }
  return fmt::format(
      "{} budget{}: {} ({:.3f} s, {} {})\n", plans.size(),
      plans.size() == 1 ? "" : "s", fmt::join(counts, ", "), seconds,
      FormatCount(nodes),
      plans.front().solver.name == "cbc" ? "nodes of CBC" : "labels");
}

std::string ToText(const FrontierAnswer& answer, const Terminal& terminal) {
  std::string text = fmt::format(
      "{}, {}\n{}\n",
      terminal.Bold(ModelOf(answer).empty() ? "model"
                                            : graph::OneLine(ModelOf(answer))),
      QuestionText(ProblemOf(answer).options.memory),
      ChoiceText(ProblemOf(answer).options));
  text +=
      fmt::format("peak without a plan {}",
                  FormatBytesExactly(ProblemOf(answer).unplanned_peak_bytes));
  if (answer.least.least.budget.proven) {
    text += fmt::format("\nsmallest feasible budget {}",
                        FormatBytesExactly(answer.least.least.budget.bytes));
  } else {
    text += "\n" + UnprovenText(answer.least.least.budget);
  }
  if (ProblemOf(answer).options.reserve_bytes > 0) {
    text += fmt::format(
        "\n{} of each budget stays free",
        graph::FormatBytes(ProblemOf(answer).options.reserve_bytes));
  }
  text += "\n\n" + Drawing(answer, terminal);

  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kLeft});
  table.AddRow({"budget", "share", "peak",
                MayOffload(answer) ? "recomputed + stalled" : "recomputed",
                "step time", "units", "status"});
  for (const Plan& plan : answer.plans) {
    const std::string share =
        fmt::format("{:.1f}%", 100 * ShareOf(answer, plan.budget_bytes));
    std::string status(ToString(plan.status));
    if (!plan.HasPlan()) {
      table.AddRow({graph::FormatBytes(plan.budget_bytes), share, "", "", "",
                    "",
                    plan.status == PlanStatus::kNoPlan ? "no plan" : status});
      continue;
    }
    if (plan.status == PlanStatus::kFeasible && !plan.offload) {
      status += fmt::format(", gap {}", FormatPercentUp(GapOf(plan)));
    }
    table.AddRow(
        {graph::FormatBytes(plan.budget_bytes), share,
         graph::FormatBytes(plan.peak_bytes),
         FormatMs(plan.recompute_ms) +
             (plan.offload ? " + " + FormatMs(plan.offload->stall_ms) : ""),
         fmt::format("+{}", FormatPercentUp(StepOverheadOf(plan))),
         fmt::format("{}", plan.modules.size()), status});
  }
  return text + table.ToString(terminal) + "\n" + Summary(answer.plans) +
         TimeErrorsText(ProblemOf(answer).profile->device) +
         NoteOn(Caveat(ProblemOf(answer).options.memory.model), terminal);
}

int ParsePoints(const std::string& text) {
  return text.empty()
             ? 20
             : static_cast<int>(ParseWhole(text, "--points", 1, 100'000));
}

int ExitCode(const std::vector<Plan>& plans) {
  const auto has = [&](auto predicate) {
    return std::ranges::any_of(plans, predicate);
  };
  if (has([](const Plan& p) { return p.HasPlan(); })) return kExitOk;
  return has([](const Plan& p) { return p.status == PlanStatus::kNoPlan; })
             ? kExitLimit
             : kExitInfeasible;
}

std::vector<Budget> ParseBudgets(const std::vector<std::string>& texts) {
  std::vector<Budget> budgets;
  for (const std::string& text : ParseNames(texts, "--budgets")) {
    budgets.push_back(ParseBudget(text, "--budgets"));
  }
  if (budgets.empty()) {
    throw InputError(
        "--budgets: expected budgets such as 8GiB,75%,min, found none");
  }
  return budgets;
}

FrontierBudgets ReadBudgets(const FrontierFlags& flags) {
  if (flags.csv && flags.json) {
    throw InputError("--csv: cannot be combined with --json");
  }
  if (!flags.points.empty() && !flags.budgets.empty()) {
    throw InputError("--points: cannot be combined with --budgets");
  }
  if (flags.budgets.empty()) return ParsePoints(flags.points);
  return ParseBudgets(flags.budgets);
}

FrontierAnswer FindPlans(problems::Question question,
                         const FrontierBudgets& budgets,
                         const std::optional<problems::LinkLimits>& link,
                         const Terminal& terminal) {
  ProgressLine progress(terminal);
  const solver::Stopwatch stopwatch;
  std::string stage;
  question.options.limits.on_progress = [&](const solver::SearchProgress& p) {
    progress.Show(stopwatch.Seconds(), [&] {
      solver::SearchProgress whole = p;
      whole.seconds = stopwatch.Seconds();
      return stage + ProgressText(whole);
    });
  };
  const auto on_plan = [&](size_t count, size_t all) {
    const std::string text = fmt::format("{} of {} budgets", count, all);
    stage = text + "  ";
    if (count == 0) return;
    progress.Clear();
    terminal.Log(text);
  };
  FrontierAnswer answer = AskFrontier(question, budgets, on_plan, link);
  if (answer.plans.empty()) RequireMinimum(answer.least.least);
  return answer;
}

int RunFrontier(const FrontierFlags& flags, const Terminal& terminal) {
  const FrontierBudgets budgets = ReadBudgets(flags);
  const ProfileInput input = ReadProfileOrTrace(flags.profile);
  const graph::Profile& profile = input.profile;
  const graph::ModuleTree tree(profile);
  terminal.Log(fmt::format("{}: {} modules; searching for plans",
                           graph::OneLine(flags.profile, 400),
                           profile.modules.size()));
  const problems::Question question =
      flags.planning.Question(input, tree, kFrontierSeconds);
  const FrontierAnswer answer =
      FindPlans(question, budgets,
                flags.link.Parse(question.options, DeviceOf(input)), terminal);
  for (const std::string& warning : ProblemOf(answer).warnings()) {
    terminal.Warn(warning);
  }

  if (!flags.output.empty()) {
    const bool is_csv =
        flags.output.ends_with(".csv") || flags.output.ends_with(".csv.gz");
    graph::WriteFile(flags.output, flags.csv || (is_csv && !flags.json)
                                       ? ToCsv(answer)
                                       : ToJson(answer));
  }
  terminal.Print(flags.csv ? ToCsv(answer)
                 : flags.json
                     ? ToJson(answer)
                     : BrokenLines(ToText(answer, terminal), terminal));
  const int exit_code = ExitCode(answer.plans);
  return exit_code == kExitOk
             ? kExitOk
             : terminal.Explain("no plan: none of the budgets has a plan",
                                exit_code);
}

}  // namespace

Command AddFrontierCommand(CLI::App& program) {
  auto flags = std::make_shared<FrontierFlags>();
  CLI::App* app = program.add_subcommand(
      "frontier", "Find the optimal plan at each of many budgets");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option("--points", flags->points,
                  "number of budgets, evenly spaced from the smallest feasible "
                  "one to the peak without a plan (default 20)")
      ->type_name("N");
  app->add_option("--budgets", flags->budgets,
                  "use these budgets instead: sizes, shares such as 75%, min; "
                  "as a,b,c or @FILE")
      ->type_name("SIZES")
      ->allow_extra_args(false);
  flags->planning.AddTo(*app, kFrontierSeconds);
  flags->planning.AddSegmentsTo(*app);
  flags->link.AddTo(*app);
  app->add_flag("--csv", flags->csv, "print CSV and nothing else");
  app->add_flag("--json", flags->json,
                "print JSON with every plan and nothing else");
  AddOutput(*app, flags->output, "write CSV (.csv or .csv.gz) or JSON here");
  app->footer(
      "Example:\n  acplan frontier example:profiles/gpt2_small --points "
      "10\n"
      "Exit status: 0 a plan was found for some budget, 2 bad input, 3 all "
      "proven infeasible, 4 a limit was hit without a plan.");
  return {app, [flags](const Terminal& terminal) {
            return RunFrontier(*flags, terminal);
          }};
}

}  // namespace acplan::cli
