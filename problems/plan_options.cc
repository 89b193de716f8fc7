#include "problems/plan_options.h"

#include <fmt/format.h>

#include <utility>

#include "graph/base/byte_size.h"

namespace acplan::problems {

using solver::StoppedBy;

std::string_view ToString(Engine engine) {
  switch (engine) {
    case Engine::kLabels:
      return "labels";
    case Engine::kCbc:
      return "cbc";
    case Engine::kAuto:
      break;
  }
  return "auto";
}

std::optional<Engine> ParseEngine(std::string_view name) {
  for (const Engine engine : {Engine::kAuto, Engine::kLabels, Engine::kCbc}) {
    if (ToString(engine) == name) return engine;
  }
  return std::nullopt;
}

std::optional<std::string> LimitName(StoppedBy stopped_by) {
  switch (stopped_by) {
    case StoppedBy::kTime:
      return "time";
    case StoppedBy::kGap:
      return "gap";
    case StoppedBy::kNodes:
      return "nodes";
    case StoppedBy::kMemory:
      return "memory";
    case StoppedBy::kUnproven:
      return "unproven";
    case StoppedBy::kInterrupt:
      return "interrupted";
    case StoppedBy::kNothing:
      break;
  }
  return std::nullopt;
}

std::string_view ToString(Granularity granularity) {
  return granularity == Granularity::kModule ? "module" : "operator";
}

std::optional<Granularity> ParseGranularity(std::string_view name) {
  for (const Granularity g : {Granularity::kModule, Granularity::kOperator}) {
    if (ToString(g) == name) return g;
  }
  return std::nullopt;
}

std::string_view ToString(Tradeoff tradeoff) {
  switch (tradeoff) {
    case Tradeoff::kFit:
      return "fit";
    case Tradeoff::kProfile:
      return "profile";
    case Tradeoff::kPareto:
      break;
  }
  return "pareto";
}

std::optional<Tradeoff> ParseTradeoff(std::string_view name) {
  for (const Tradeoff t :
       {Tradeoff::kPareto, Tradeoff::kFit, Tradeoff::kProfile}) {
    if (ToString(t) == name) return t;
  }
  return std::nullopt;
}

OptionError::OptionError(std::string option, std::string complaint,
                         std::string remedy)
    : InputError(option + ": " + complaint +
                 (remedy.empty() ? "" : "; use " + remedy)),
      option_(std::move(option)),
      complaint_(std::move(complaint)),
      remedy_(std::move(remedy)) {}

void CheckBudget(const PlanOptions& options) {
  if (options.budget_bytes <= 0) {
    throw OptionError("budget",
                      fmt::format("expected a positive size, found {}",
                                  options.budget_bytes));
  }
  if (options.reserve_bytes < 0 ||
      options.reserve_bytes >= options.budget_bytes) {
    throw OptionError(
        "reserve", fmt::format("expected less than the budget ({}), found {}",
                               graph::FormatBytes(options.budget_bytes),
                               graph::FormatBytes(options.reserve_bytes)));
  }
}

void CheckOptions(const PlanOptions& options) {
  if (options.memory.world_size < 1) {
    throw OptionError("world_size", fmt::format("expected at least 1, found {}",
                                                options.memory.world_size));
  }
  if (options.max_units && *options.max_units < 0) {
    throw OptionError("max_units", fmt::format("expected at least 0, found {}",
                                               *options.max_units));
  }
  if (options.granularity == Granularity::kOperator &&
      options.tradeoff != Tradeoff::kPareto) {
    throw OptionError(
        "tradeoff",
        fmt::format("expected pareto at operator granularity, found {}",
                    ToString(options.tradeoff)));
  }
  if (options.granularity == Granularity::kModule &&
      !options.patterns.empty()) {
    throw OptionError(options.patterns.save.empty() ? "recompute" : "save",
                      "needs operator granularity, found module");
  }
}

void CheckTraceOptions(const PlanOptions& options) {
  if (options.granularity != Granularity::kOperator) {
    throw OptionError(
        "granularity",
        "expected operator with the memory model trace, found module",
        "memory_model snapshot");
  }
  if (options.engine == Engine::kCbc) {
    throw OptionError(
        "engine",
        "expected auto or labels with the memory model trace, found cbc");
  }
  if (options.memory.without_states) {
    throw OptionError("without_states",
                      "needs the memory model snapshot, found trace");
  }
}

void CheckEngine(const ModuleProblem& problem, Engine engine) {
  if (engine == Engine::kLabels && !problem.prefix_structure) {
    throw OptionError(
        "engine labels",
        "a module runs outside its parent's forward in this profile "
        "(order.fw_post)",
        "engine cbc");
  }
}

bool TakesLabels(const ModuleProblem& problem, Engine engine) {
  return engine == Engine::kLabels ||
         (engine == Engine::kAuto && problem.prefix_structure);
}

}  // namespace acplan::problems
