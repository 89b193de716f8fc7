#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/llm_input.h"
#include "cli/input/llm_strategies.h"
#include "cli/llm/llm_comparison_text.h"
#include "costmodel/llm/records.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::ComparedStrategy;

struct LlmCompareFlags {
  std::string application;
  std::string system;
  std::vector<std::string> executions;
  std::string output;
  bool json = false;
  ModeFlags mode{.mode = "corrected", .correct = {}};
};

struct Comparison {
  costmodel::Model model;
  costmodel::System system;
  costmodel::Corrections corrections;
  std::vector<ComparedStrategy> strategies;
};

void CheckOutput(const LlmCompareFlags& flags) {
  if (flags.output.empty()) return;
  std::vector<std::string> inputs = {flags.application, flags.system};
  for (const std::string& argument : flags.executions) {
    inputs.push_back(StrategyFile(argument));
  }
  CheckResultOutput(flags.output, {".json", ".json.gz", ".csv", ".csv.gz"},
                    inputs);
}

Comparison Compare(const LlmCompareFlags& flags, const Terminal& terminal) {
  Comparison comparison{.model = ReadModelInput(flags.application, terminal),
                        .system = ReadSystemInput(flags.system, terminal),
                        .corrections = flags.mode.Resolve(),
                        .strategies = {}};
  const std::vector<costmodel::NamedExecution> strategies =
      ReadStrategies(flags.executions);
  if (comparison.corrections != costmodel::AllCorrections()) {
    for (size_t i = 0; i < strategies.size(); ++i) {
      if (!strategies[i].plan_budget) continue;
      throw InputError(fmt::format("{}: a plan needs --mode corrected",
                                   graph::OneLine(flags.executions[i], 400)));
    }
  }
  comparison.strategies = CompareStrategies(comparison.model, comparison.system,
                                            strategies, comparison.corrections);
  for (size_t i = 0; i < comparison.strategies.size(); ++i) {
    const ComparedStrategy& one = comparison.strategies[i];
    if (one.verdict.Fits() || one.verdict.IsInfeasible()) continue;
    throw InputError(fmt::format(
        "{}: {}", graph::OneLine(flags.executions[i], 400),
        DescribeContradiction(one.verdict, comparison.model, comparison.system,
                              one.strategy.execution)));
  }
  return comparison;
}

std::string JsonText(const Comparison& comparison) {
  return ComparisonJson(comparison.strategies, comparison.model,
                        comparison.system, comparison.corrections)
             .dump(2) +
         "\n";
}

void Write(const std::string& output, const Comparison& comparison) {
  const bool is_csv = output.ends_with(".csv") || output.ends_with(".csv.gz");
  graph::WriteFile(
      output, is_csv ? ComparisonCsv(comparison.strategies, comparison.model,
                                     comparison.system)
                     : JsonText(comparison));
}

std::string Text(const LlmCompareFlags& flags, const Comparison& comparison,
                 const Terminal& terminal) {
  std::string text =
      fmt::format("{} on {}, ratios to {}\n\n",
                  terminal.Bold(graph::OneLine(FileStem(flags.application))),
                  graph::OneLine(FileStem(flags.system)),
                  comparison.strategies.front().strategy.name);
  text += ComparisonText(comparison.strategies, terminal.Columns(), terminal);
  std::string reasons;
  for (const ComparedStrategy& one : comparison.strategies) {
    if (one.verdict.Fits()) continue;
    reasons += fmt::format("{}: infeasible: {}\n", one.strategy.name,
                           ReasonOf(one, comparison.model, comparison.system));
  }
  return reasons.empty() ? text : text + "\n" + reasons;
}

int RunLlmCompare(const LlmCompareFlags& flags, const Terminal& terminal) {
  CheckOutput(flags);
  const Comparison comparison = Compare(flags, terminal);
  if (!flags.output.empty()) Write(flags.output, comparison);
  terminal.Print(flags.json ? JsonText(comparison)
                            : Text(flags, comparison, terminal));
  const bool has_feasible = std::ranges::any_of(
      comparison.strategies,
      [](const ComparedStrategy& one) { return one.verdict.Fits(); });
  return has_feasible ? kExitOk
                      : terminal.Explain("infeasible: no strategy fits",
                                         kExitInfeasible);
}

}  // namespace

Command AddLlmCompareCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmCompareFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-compare", "Strategies for a language model, side by side");
  app->add_option("APPLICATION", flags->application,
                  "model (.json or .json.gz)")
      ->required();
  app->add_option("SYSTEM", flags->system, "system (.json or .json.gz)")
      ->required();
  app->add_option("EXECUTION", flags->executions,
                  "strategies: executions, plans of llm-plan, or results of "
                  "llm-optimal-execution and llm-search, FILE:RANK or FILE for "
                  "the best")
      ->required();
  app->add_flag("--json", flags->json, "print JSON, nothing else");
  app->add_option("-o,--output", flags->output,
                  "write the figures here (.json or .csv, with .gz packed)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  flags->mode.AddTo(*app);
  app->footer(
      "Example:\n  acplan llm-compare data/models/gpt3-175B.json "
      "data/systems/a100_80g.json "
      "data/validation/seqsel/tab5/gpt3-175B_full.json "
      "data/validation/seqsel/tab5/gpt3-175B_seqsel.json\n"
      "Exit status: 0 compared, 2 bad input, 3 none is feasible.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmCompare(*flags, terminal);
          }};
}

}  // namespace acplan::cli
