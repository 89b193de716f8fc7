#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/plan_input.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/report/execution_data.h"
#include "cli/report/frontier_data.h"
#include "cli/report/module_data.h"
#include "cli/report/page.h"
#include "cli/report/profile_data.h"
#include "cli/report/run_data.h"
#include "cli/report/search_data.h"
#include "cli/report/step_data.h"
#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "problems/budget_frontier.h"
#include "problems/check/plan_check.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/rank_peak.h"

namespace acplan::cli {

using nlohmann::ordered_json;
using problems::Plan;

namespace {

// The default of --time-limit, for all budgets of the frontier together.
constexpr double kReportSeconds = 10;

struct ReportFlags {
  std::string profile;
  std::vector<std::string> plans;
  std::string frontier;
  std::string points;
  std::string time_limit;
  std::vector<std::string> parts;
  std::string output;
};

// The parts of a step's page, in the order of the page (modules.js).
constexpr std::array<std::string_view, 8> kParts = {
    "summary", "memory",   "peak", "device",
    "lines",   "frontier", "map",  "modules"};

// Returns the parts to show; null for all of them.
ordered_json PartsJson(const std::vector<std::string>& parts) {
  if (parts.empty()) return nullptr;
  ordered_json json = ordered_json::array();
  for (const std::string& part : ParseNames(parts, "--parts")) {
    if (std::ranges::find(kParts, part) == kParts.end()) {
      throw InputError(fmt::format("--parts: expected some of {}, found {}",
                                   fmt::join(kParts, ", "),
                                   graph::Quoted(part)));
    }
    json.push_back(part);
  }
  return json;
}

struct NamedPlan {
  std::string path;
  std::string name;  // the file's name, or its path if two files share the name
  Plan plan;
};

std::string PlainName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::vector<NamedPlan> ReadPlans(const std::vector<std::string>& paths,
                                 const ProfileInput& input) {
  std::map<std::string, int> count;
  for (const std::string& path : paths) ++count[PlainName(path)];
  std::vector<NamedPlan> plans;
  for (const std::string& path : paths) {
    const std::string name = PlainName(path);
    plans.push_back({.path = path,
                     .name = count[name] == 1 ? name : path,
                     .plan = ReadAnswer(path, input.profile)});
    RequireTrace(plans.back().plan.memory, input, path);
  }
  return plans;
}

// Returns a step of a trace under a plan.
ordered_json TraceRunJson(const ProfileInput& input, const NamedPlan& plan_file,
                          const problems::MemoryOptions& memory) {
  const ProfileInput own =
      WithSegmentsOf(input, plan_file.plan, plan_file.path);
  const graph::Trace& trace = *own.trace;
  SampledRun run{.name = plan_file.name, .trace = &trace, .detail = {}};
  ordered_json lines;
  try {
    const auto modules =
        problems::CheckpointedModules(trace, plan_file.plan.modules);
    run.detail = graph::Simulator(trace).SimulateInDetail(modules);
    run.detail = DetailOnRank(std::move(run.detail), trace, memory);
    if (!trace.sources.empty()) {
      lines = LinesJson(trace, AccountForPeakOfRank(trace, modules, memory));
    }
  } catch (const InputError& error) {
    throw NamingFile(error, plan_file.path);
  }
  ordered_json json = RunJson(run);
  if (!lines.empty()) json["lines"] = std::move(lines);
  const bool has_run = memory.world_size == 1 && !memory.without_states &&
                       !plan_file.plan.offload;
  if (has_run) json["device"] = RunsOnDeviceJson(trace, plan_file.plan);
  return json;
}

ordered_json ProfileRun(const ProfileInput& input, const NamedPlan& plan_file,
                        const problems::MemoryOptions& memory) {
  const bool is_drawn = plan_file.path.empty() && !memory.without_states &&
                        memory.model == problems::MemoryModel::kSnapshot;
  ordered_json json =
      is_drawn ? ProfileRunJson(plan_file.name, input.profile, memory)
               : ordered_json{{"name", plan_file.name}};
  try {
    const problems::PlanEffect effect =
        ComputeEffect(input.profile, plan_file.plan.modules, memory,
                      plan_file.plan.tradeoff, input.TraceIfAny());
    json["peak_bytes"] = effect.peak_bytes;
    json["peak_module"] = effect.peak_module;
    json["recompute_ms"] = effect.recompute_ms;
  } catch (const InputError& error) {
    throw NamingFile(error, plan_file.path);
  }
  return json;
}

// Returns the question that the first plan answers, as flags would ask it.
PlanningFlags QuestionOf(const problems::MemoryOptions& memory,
                         const std::vector<NamedPlan>& plans) {
  PlanningFlags flags;
  flags.memory.model = ToString(memory.model);
  flags.memory.world_size = fmt::to_string(memory.world_size);
  flags.memory.without_states = memory.without_states;
  flags.units.fsdp_units = memory.fsdp_units;
  if (plans.empty()) return flags;
  const Plan& plan = plans.front().plan;
  flags.granularity = plan.granularity;
  if (plan.granularity == "module") flags.tradeoff = plan.tradeoff;
  if (plan.reserve_bytes > 0) {
    flags.reserve = fmt::to_string(plan.reserve_bytes);
  }
  return flags;
}

// Replaces points that are not proven by given plans that are better.
void Improve(std::vector<Plan>& points,
             const std::vector<NamedPlan>& given_plans) {
  for (Plan& point : points) {
    const bool is_open = point.status == problems::PlanStatus::kFeasible ||
                         point.status == problems::PlanStatus::kNoPlan;
    for (const NamedPlan& given_plan : given_plans) {
      const Plan& plan = given_plan.plan;
      const bool fits =
          plan.HasPlan() && plan.granularity == point.granularity &&
          QuestionText(plan.memory) == QuestionText(point.memory) &&
          plan.peak_bytes <= point.budget_bytes - point.reserve_bytes;
      if (!is_open || !fits) continue;
      if (point.HasPlan() && point.recompute_ms <= plan.recompute_ms) continue;
      const int64_t budget = point.budget_bytes;
      const double bound = point.HasPlan() ? point.bound_ms : 0;
      point = plan;
      point.budget_bytes = budget;
      point.bound_ms = std::min(bound, plan.recompute_ms);
      point.status = problems::PlanStatus::kFeasible;
    }
  }
}

ordered_json FindFrontier(const ProfileInput& input, PlanningFlags flags,
                          int points, const std::string& time_limit,
                          const std::vector<NamedPlan>& given_plans) {
  flags.time_limit =
      time_limit.empty() ? fmt::to_string(kReportSeconds) : time_limit;
  const graph::ModuleTree tree(input.profile);
  problems::FrontierAnswer answer =
      AskFrontier(flags.Question(input, tree, kReportSeconds), points);
  Improve(answer.plans, given_plans);
  return FrontierJson(answer.plans,
                      answer.families.front().problem.unplanned_peak_bytes);
}

// Returns null if no frontier was requested, or if there is none for such a
// profile.
ordered_json FrontierOf(const ReportFlags& flags, const ProfileInput& input,
                        const std::vector<NamedPlan>& plans,
                        const problems::MemoryOptions& memory,
                        const Terminal& terminal) {
  const auto points = static_cast<int>(ParseWhole(
      flags.points.empty() ? "8" : flags.points, "--points", 0, 1000));
  if (!flags.time_limit.empty()) ParseTimeLimit(flags.time_limit);
  if (!flags.frontier.empty()) {
    if (!flags.points.empty()) {
      throw InputError("--points: cannot be combined with --frontier");
    }
    return ReadFrontier(flags.frontier, input.profile.model.name);
  }
  if (points == 0) return nullptr;
  try {
    return FindFrontier(input, QuestionOf(memory, plans), points,
                        flags.time_limit, plans);
  } catch (const InputError& error) {
    terminal.Warn(fmt::format("the page has no frontier: {}", error.what()));
    return nullptr;
  }
}

ordered_json StepData(const ReportFlags& flags, const ProfileInput& input,
                      const Terminal& terminal) {
  const std::vector<NamedPlan> plans = ReadPlans(flags.plans, input);
  const problems::MemoryOptions memory =
      plans.empty() ? MemoryFlags().Resolve(input) : plans.front().plan.memory;
  const graph::Profile& profile = input.profile;
  ordered_json data = {{"format", "acplan.report"},
                       {"version", 1},
                       {"source", PlainName(flags.profile)},
                       {"model",
                        {{"name", profile.model.name},
                         {"batch", profile.model.batch},
                         {"seq", profile.model.seq},
                         {"dtype", profile.model.dtype},
                         {"optimizer", profile.model.optimizer}}},
                       {"question", QuestionText(memory)},
                       {"caveat", Caveat(memory.model)},
                       {"of_operators", input.trace.has_value()},
                       {"kinds", KindNames()},
                       {"free_kinds", FreeKindNames()},
                       {"parts", PartsJson(flags.parts)},
                       {"runs", ordered_json::array()}};
  std::vector<NamedPlan> runs{{.path = "", .name = "no plan", .plan = {}}};
  runs.insert(runs.end(), plans.begin(), plans.end());
  for (const NamedPlan& plan_file : runs) {
    ordered_json run = input.trace ? TraceRunJson(input, plan_file, memory)
                                   : ProfileRun(input, plan_file, memory);
    if (!plan_file.path.empty()) {
      run["answer"] = AnswerJson(plan_file.plan);
      run["units"] = UnitsJson(plan_file.plan);
      if (QuestionText(plan_file.plan.memory) != QuestionText(memory)) {
        terminal.Warn(fmt::format(
            "{} was planned for {}, and is shown under {}", plan_file.path,
            QuestionText(plan_file.plan.memory), QuestionText(memory)));
      }
    }
    data["runs"].push_back(std::move(run));
  }
  data["step_ms"] = problems::StepMs(profile);
  data["tree"] = ModulesJson(input, graph::ModuleTree(profile));
  data["frontier"] = FrontierOf(flags, input, plans, memory, terminal);
  return data;
}

int RunReport(const ReportFlags& flags, const Terminal& terminal) {
  RequirePageName(flags.output);
  std::string page;
  // The file may be a pipe, so it is read once.
  const std::string text = graph::ReadJsonText(flags.profile);
  std::optional<ordered_json> search = ParseTraining(text, flags.profile);
  if (!search) search = ParseExecutions(text, flags.profile);
  if (search) {
    for (const auto& [name, is_given] :
         {std::pair("--parts", !flags.parts.empty()),
          {"--points", !flags.points.empty()},
          {"--time-limit", !flags.time_limit.empty()}}) {
      if (is_given) {
        throw InputError(fmt::format(
            "{}: expected a page of a step, found one of a search", name));
      }
    }
    if (!flags.plans.empty() || !flags.frontier.empty()) {
      throw InputError(fmt::format(
          "{}: expected a profile or trace beside plans, found strategies",
          graph::OneLine(flags.profile, 400)));
    }
    page = ReportPage(PageKind::kSearch, "Strategies of training", *search);
  } else {
    const ProfileInput input = ParseProfileOrTrace(text, flags.profile);
    const std::string& model = input.profile.model.name;
    page = ReportPage(
        PageKind::kStep,
        fmt::format("Memory of a step of {}", model.empty() ? "model" : model),
        StepData(flags, input, terminal));
  }
  graph::WriteFile(flags.output, page);
  terminal.Print(fmt::format("{}: {}\n", graph::OneLine(flags.output, 400),
                             FormatBytesExactly(std::ssize(page))));
  return kExitOk;
}

}  // namespace

Command AddReportCommand(CLI::App& program) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* app = program.add_subcommand(
      "report", "Write an HTML page about a step's memory and its plans");
  app->add_option("PROFILE", flags->profile,
                  "profile, trace, or a file that train show, train search or "
                  "llm-optimal-execution wrote (.json or .json.gz)")
      ->required();
  app->add_option("PLAN", flags->plans, "plan files");
  AddOutput(*app, flags->output, "write the page here (.html)");
  app->add_option("--frontier", flags->frontier,
                  "a file that acplan frontier wrote, in place of --points")
      ->type_name("FILE");
  app->add_option("--points", flags->points,
                  "number of budgets of the frontier (8); 0: no frontier")
      ->type_name("N");
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for the frontier (10); none: no limit")
      ->type_name("S");
  app->add_option("--parts", flags->parts,
                  "write only these parts, without a heading: some of summary, "
                  "memory, peak, device, lines, frontier, map, modules")
      ->type_name("A,B");
  app->footer(
      "Example:\n  acplan report example:traces/gpt2_small -o "
      "report.html\n"
      "Exit status: 0 written, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunReport(*flags, terminal);
          }};
}

}  // namespace acplan::cli
