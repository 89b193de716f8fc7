#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/text.h"
#include "graph/byte_size.h"
#include "graph/file_io.h"
#include "graph/input_error.h"
#include "graph/message_text.h"
#include "graph/module_tree.h"
#include "graph/profile.h"
#include "problems/module_checkpointing.h"
#include "problems/plan_check.h"

namespace acplan::cli {

using problems::Plan;
using problems::PlanStatus;

namespace {

struct PlanFlags {
  std::string profile;
  std::string budget;
  std::string reserve;
  MemoryFlags memory;
  UnitFlags units;
  std::string tradeoff = "profile";
  std::string engine = "auto";
  std::string gap;
  std::string time_limit;
  std::string seed;
  std::string output;
  bool json = false;
};

problems::PlanOptions ToOptions(const PlanFlags& flags,
                                const graph::Profile& profile) {
  problems::PlanOptions options;
  options.budget_bytes = graph::ParseByteSize(flags.budget, "--budget");
  options.reserve_bytes = ParseReserve(flags.reserve).value_or(0);
  options.memory = flags.memory.Resolve(profile);
  options.ac_units = flags.units.AcUnits();
  options.fsdp_units = flags.units.FsdpUnits();
  options.max_units = flags.units.MaxUnits();
  if (flags.tradeoff != "profile") {
    throw InputError(fmt::format("--tradeoff: expected profile, found '{}'",
                                 flags.tradeoff));
  }
  const auto engine = problems::ParseEngine(flags.engine);
  if (!engine) {
    throw InputError(fmt::format(
        "--engine: expected auto, labels or cbc, found '{}'", flags.engine));
  }
  options.engine = *engine;
  if (!flags.gap.empty()) {
    options.limits.gap = ParseNumber(flags.gap, "--gap", 0, 1);
  }
  if (!flags.time_limit.empty()) {
    options.limits.time_limit_s =
        ParseNumber(flags.time_limit, "--time-limit", 0,
                    std::numeric_limits<double>::infinity());
  }
  if (!flags.seed.empty()) {
    options.limits.seed = static_cast<int>(
        ParseWhole(flags.seed, "--seed", 0, std::numeric_limits<int>::max()));
  }
  return options;
}

std::string Heading(const graph::Profile& profile, const Plan& plan,
                    const Terminal& terminal) {
  const graph::ModelInfo& model = profile.model;
  std::string text =
      terminal.Bold(model.name.empty() ? "model" : graph::OneLine(model.name));
  text += fmt::format(", {} modules", profile.modules.size());
  if (model.batch > 0) text += fmt::format(", batch {}", model.batch);
  if (model.seq > 0) text += fmt::format(", sequence {}", model.seq);
  if (!model.dtype.empty()) text += ", " + graph::OneLine(model.dtype);
  if (!model.optimizer.empty()) text += ", " + graph::OneLine(model.optimizer);
  text += "\n";
  text += fmt::format("budget {}", FormatBytesExactly(plan.budget_bytes));
  if (plan.reserve_bytes > 0) {
    text += fmt::format(", {} of it kept free",
                        graph::FormatBytes(plan.reserve_bytes));
  }
  text += ", " + QuestionText(plan.memory);
  return text + "\n\n";
}

std::string Comparison(const graph::Profile& profile, const Plan& plan,
                       const Terminal& terminal) {
  // What a rank would need without the plan.
  const int64_t unplanned =
      problems::ComputeEffect(profile, {}, plan.memory).peak_bytes;
  const bool sharded = plan.memory.world_size > 1;
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight});
  const auto row = [&](const std::string& name, const std::string& baseline,
                       const std::string& ranks, const std::string& planned,
                       const std::string& change) {
    std::vector<std::string> cells{name, baseline};
    if (sharded) cells.push_back(ranks);
    cells.insert(cells.end(), {planned, change});
    table.AddRow(std::move(cells));
  };
  const std::string step = FormatMs(plan.baseline.runtime_ms);
  row("", "baseline", fmt::format("on {} ranks", plan.memory.world_size),
      "plan", "change");
  row("peak memory", graph::FormatBytes(plan.baseline.peak_bytes),
      graph::FormatBytes(unplanned), graph::FormatBytes(plan.peak_bytes),
      FormatChange(static_cast<double>(unplanned),
                   static_cast<double>(plan.peak_bytes)));
  row("step time", step, step,
      FormatMs(plan.baseline.runtime_ms + plan.recompute_ms),
      fmt::format("+{}", FormatPercentUp(plan.overhead)));
  row("recomputed", FormatMs(0), FormatMs(0), FormatMs(plan.recompute_ms), "");
  std::string text = table.ToString(terminal);
  text += fmt::format("peak at         {} (baseline: {})\n", plan.peak_module,
                      plan.baseline.peak_module);
  return text + "\n";
}

std::string UnitTable(const Plan& plan, const Terminal& terminal) {
  if (plan.modules.empty()) {
    return "No module needs to be checkpointed: the model fits as it is.\n\n";
  }
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight});
  table.AddRow(
      {"AC unit", "discard ratio", "memory budget", "discarded", "recomputed"});
  int64_t discarded = 0;
  for (const problems::PlannedModule& module : plan.modules) {
    discarded += module.discarded_bytes;
    const std::string ratio = FormatRatioUp(module.discard_ratio);
    table.AddRow({module.fqn, ratio,
                  fmt::format("{:.4f}", std::max(0.0, 1 - std::stod(ratio))),
                  graph::FormatBytes(module.discarded_bytes),
                  FormatMs(module.recompute_ms)});
  }
  table.AddRule();
  table.AddRow({fmt::format("{} unit{}", plan.modules.size(),
                            plan.modules.size() == 1 ? "" : "s"),
                "", "", graph::FormatBytes(discarded),
                FormatMs(plan.recompute_ms)});
  return table.ToString(terminal) + "\n";
}

std::string LimitText(const Plan& plan) {
  if (!plan.limit) return "";
  if (*plan.limit == "interrupted") return "interrupted";
  return fmt::format("stopped by the {} limit", *plan.limit);
}

std::string Verdict(const Plan& plan, const Terminal& terminal) {
  const std::string effort = fmt::format(
      "{:.3f} s, {} {}", plan.solver.seconds, FormatCount(plan.solver.nodes),
      plan.solver.name == "cbc" ? "nodes of CBC" : "labels");
  switch (plan.status) {
    case PlanStatus::kOptimal:
      return fmt::format(
          "{}: no plan within the budget recomputes less (gap 0, {})\n",
          terminal.Green("optimal"), effort);
    case PlanStatus::kFeasible:
      return fmt::format(
          "{}, {}: no plan recomputes less than {} (gap {}, {})\n",
          terminal.Yellow("feasible"), LimitText(plan), FormatMs(plan.bound_ms),
          FormatPercentUp(plan.gap), effort);
    case PlanStatus::kInfeasible: {
      std::string text =
          fmt::format("{}: no plan fits in {}\n", terminal.Yellow("infeasible"),
                      FormatBytesExactly(plan.budget_bytes));
      if (plan.minimum_budget_bytes) {
        text += fmt::format("the smallest budget that a plan fits: {}\n",
                            FormatBytesExactly(*plan.minimum_budget_bytes));
      }
      return text;
    }
    case PlanStatus::kNoPlan:
      break;
  }
  return fmt::format("{}: {} before a plan was found ({})\n",
                     terminal.Yellow("no plan"), LimitText(plan), effort);
}

int ExitCode(PlanStatus status) {
  switch (status) {
    case PlanStatus::kOptimal:
    case PlanStatus::kFeasible:
      return kExitOk;
    case PlanStatus::kInfeasible:
      return kExitInfeasible;
    case PlanStatus::kNoPlan:
      break;
  }
  return kExitLimit;
}

int RunPlan(const PlanFlags& flags, const Terminal& terminal) {
  const graph::Profile profile = graph::ReadProfile(flags.profile);
  const graph::ModuleTree tree(profile);
  problems::PlanOptions options = ToOptions(flags, profile);
  if (!flags.output.empty()) {
    graph::CheckWritable(flags.output);
    std::error_code none;
    if (std::filesystem::equivalent(flags.profile, flags.output, none)) {
      throw InputError(fmt::format(
          "--output: expected another file than the profile, found {}",
          graph::Quoted(flags.output, 400)));
    }
  }

  problems::PlanResult result;
  {
    ProgressLine progress(terminal);
    options.limits.interrupted = &InterruptFlag();
    terminal.Log(fmt::format("{}: {} modules; searching for a plan",
                             graph::OneLine(flags.profile, 400),
                             profile.modules.size()));
    options.limits.on_progress = [&](const solver::SearchProgress& p) {
      progress.Show(p);
    };
    result = PlanModules(profile, tree, options);
  }
  for (const std::string& warning : result.warnings) terminal.Warn(warning);

  const Plan& plan = result.plan;
  const std::string json = PlanToJson(plan);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  if (flags.json) {
    terminal.Print(json);
    return ExitCode(plan.status);
  }
  std::string text = Heading(profile, plan, terminal);
  if (plan.HasPlan()) {
    text += Comparison(profile, plan, terminal) + UnitTable(plan, terminal);
  } else {
    text += fmt::format("baseline peak {} at {}\n",
                        graph::FormatBytes(plan.baseline.peak_bytes),
                        plan.baseline.peak_module);
  }
  text += Verdict(plan, terminal);
  text += NoteOn(plan.memory.model, terminal);
  terminal.Print(text);
  return ExitCode(plan.status);
}

}  // namespace

Command AddPlanCommand(CLI::App& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = program.add_subcommand(
      "plan", "Choose modules to checkpoint under a memory budget, optimally");
  app->add_option("PROFILE", flags->profile, "profile (.json or .json.gz)")
      ->required();
  app->add_option("--budget", flags->budget,
                  "memory a rank may use at its peak: 1.6GiB, 1600MB, bytes")
      ->required()
      ->type_name("SIZE");
  app->add_option("--reserve", flags->reserve, "of the budget, keep SIZE free")
      ->type_name("SIZE");
  flags->memory.AddTo(*app);
  flags->units.AddTo(*app);
  app->add_option("--tradeoff", flags->tradeoff,
                  "recomputation against memory of a module; profile: the fit "
                  "stored in the profile (default)")
      ->type_name("KIND");
  app->add_option(
         "--engine", flags->engine,
         "auto (default), labels or cbc: the algorithm; both are exact")
      ->type_name("NAME");
  app->add_option(
         "--gap", flags->gap,
         "stop within this share of the best possible, 0 to 1 (default "
         "0: proven optimal)")
      ->type_name("G");
  app->add_option("--time-limit", flags->time_limit,
                  "stop after S seconds with the best plan so far")
      ->type_name("S");
  app->add_option("--seed", flags->seed, "seed of the cbc engine (default 1)")
      ->type_name("N");
  app->add_option("-o,--output", flags->output,
                  "write the plan file here (.json or .json.gz)")
      ->type_name("FILE");
  app->add_flag("--json", flags->json, "print the plan file, nothing else");
  app->footer(
      "Example:\n  acplan plan data/profiles/gpt2_small.json.gz --budget 10GiB "
      "-o plan.json\n"
      "Exit status: 0 a plan was found, 2 bad input, 3 proven infeasible, 4 a "
      "limit was hit without a plan.");
  return {app, [flags](const Terminal& terminal) {
            return RunPlan(*flags, terminal);
          }};
}

}  // namespace acplan::cli
