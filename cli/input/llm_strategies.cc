#include "cli/input/llm_strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "cli/input/llm_input.h"
#include "costmodel/planning/plan_record.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Execution;
using costmodel::NamedExecution;

struct StrategyArgument {
  std::string file;
  std::optional<std::string> rank;
};

// A colon before digits belongs to the file's name unless that ends before it.
StrategyArgument Split(const std::string& argument) {
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos) return {argument, {}};
  const std::string file = argument.substr(0, colon);
  if (!file.ends_with(".json") && !file.ends_with(".json.gz")) {
    return {argument, {}};
  }
  return {file, argument.substr(colon + 1)};
}

// The results of a search that found nothing are empty.
bool IsResults(const nlohmann::json& document) {
  return document.is_object() &&
         (document.empty() ||
          std::ranges::any_of(document, [](const nlohmann::json& member) {
            return member.is_object() && member.contains("execution");
          }));
}

bool IsPlan(const nlohmann::json& document) {
  return document.is_object() && document.contains("format");
}

// Returns the budget of a result of llm-search, which has a plan.
std::optional<double> BudgetOfResult(const graph::JsonField& entry) {
  if (!entry.json().contains("plan")) return {};
  const graph::JsonField budget = entry.Get("stats").Get("budget_bytes");
  const double bytes = budget.NonNegativeNumber();
  return bytes;
}

NamedExecution ReadStrategy(const StrategyArgument& argument) {
  RequireJsonName(argument.file);
  const std::string text = graph::ReadFile(argument.file);
  const nlohmann::json document = graph::ParseJson(text, argument.file);
  const graph::JsonField root(document, argument.file);
  const std::string stem = graph::OneLine(FileStem(argument.file), 400);
  if (IsResults(document)) {
    const std::string rank = argument.rank.value_or("0");
    const graph::JsonField entry = root.Get(rank);
    return {fmt::format("{}:{}", stem, rank),
            costmodel::ParseExecution(entry.Get("execution")),
            BudgetOfResult(entry)};
  }
  if (argument.rank) {
    root.Complain(
        fmt::format("expected the results of a search, of which {} is a rank, "
                    "found none",
                    graph::Quoted(*argument.rank)));
  }
  if (IsPlan(document)) {
    const costmodel::PlanRecord plan =
        costmodel::ParsePlanRecord(text, argument.file);
    if (!plan.is_corrected) {
      root.Get("mode").Complain("expected a plan of mode corrected");
    }
    return {stem, plan.execution, plan.budget_bytes};
  }
  return {stem, costmodel::ParseExecution(root)};
}

}  // namespace

std::string StrategyFile(const std::string& argument) {
  return Split(argument).file;
}

std::vector<NamedExecution> ReadStrategies(
    const std::vector<std::string>& arguments) {
  std::vector<NamedExecution> strategies;
  std::set<std::string> names;
  for (const std::string& argument : arguments) {
    strategies.push_back(ReadStrategy(Split(argument)));
    names.insert(strategies.back().name);
  }
  if (names.size() < strategies.size()) {
    for (size_t i = 0; i < strategies.size(); ++i) {
      strategies[i].name = graph::OneLine(arguments[i], 400);
    }
  }
  return strategies;
}

LlmResult ReadPlanQuestion(const StrategyFlags& flags,
                           const costmodel::Corrections& corrections,
                           const std::string& budget,
                           const Terminal& terminal) {
  const NamedExecution strategy = ReadStrategy(Split(flags.execution));
  LlmResult question{.model = ReadModelInput(flags.application, terminal),
                     .system = {},
                     .execution = strategy.execution,
                     .corrections = corrections,
                     .evaluation = {}};
  question.system = ReadSystemInput(flags.system, terminal);
  if (!question.execution.training) {
    throw InputError(
        fmt::format("{}: training: expected true, as only training keeps "
                    "activations, found false",
                    graph::OneLine(flags.execution, 400)));
  }
  if (!budget.empty()) {
    question.system.mem1.capacity =
        static_cast<double>(graph::ParseByteSize(budget, "--budget"));
  } else if (strategy.plan_budget) {
    question.system.mem1.capacity = *strategy.plan_budget;
  }
  question.evaluation.verdict =
      CheckFit(question.model, question.system, question.execution);
  RefuseContradiction(flags.execution, question.evaluation.verdict,
                      question.model, question.system, question.execution);
  return question;
}

}  // namespace acplan::cli
