#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/module/module_statistics.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "problems/check/plan_check.h"
#include "problems/engines/operator_checkpointing.h"
#include "problems/planner.h"
#include "solver/status_names.h"

namespace acplan::cli {

using problems::OperatorPolicy;
using problems::OperatorSolution;
using solver::SearchStatus;

namespace {

struct OpsFlags {
  std::string profile;
  std::string module;
  std::string memory_budget;
  PatternFlags patterns;
  std::string engine = "auto";
  std::string time_limit;
  std::string output;
  bool json = false;
};

struct PolicyAnswer {
  std::string model;
  ModuleStatistics statistics;
  double memory_budget = 0;
  int64_t capacity_bytes = 0;
  std::vector<std::string> rules;  // by operator, "" for none
  OperatorSolution solution;
  // The least memory budget that a policy fits, if none fits this one.
  std::optional<double> minimum;

  bool HasPolicy() const {
    return solution.status == SearchStatus::kOptimal ||
           solution.status == SearchStatus::kFeasible;
  }
};

// Returns the rules for each operator, in the order of sac_statistics.h.
std::vector<std::string> RuleTexts(const graph::SacStatistics& sac,
                                   const graph::OperatorPatterns& patterns) {
  std::vector<std::string> rules(sac.func_names.size());
  const auto add = [&](int op, const std::string& rule) {
    rules[op] += (rules[op].empty() ? "" : ", ") + rule;
  };
  for (const int op : sac.view_like_ops) add(op, "view-like");
  for (const auto& [op, parent] : sac.inplace_ops) {
    add(op, op == parent ? "in place on itself"
                         : fmt::format("in place with {}", parent));
  }
  for (const int op : sac.rand_ops) {
    add(op, sac.force_store_random ? "random, to be saved" : "random");
  }
  const auto add_matches = [&](const std::vector<std::string>& alternatives,
                               std::string_view flag) {
    for (size_t op = 0; op < rules.size(); ++op) {
      for (const std::string& pattern : alternatives) {
        if (!graph::MatchesPattern(sac.func_names[op], pattern)) continue;
        add(static_cast<int>(op), fmt::format("{} {}", flag, pattern));
        break;
      }
    }
  };
  add_matches(patterns.save, "--save");
  add_matches(patterns.recompute, "--recompute");
  return rules;
}

// Returns the least share, in millionths, whose capacity holds this many bytes.
double LeastShare(const graph::OperatorGroups& groups, int64_t bytes) {
  constexpr int kParts = 1'000'000;
  int least = 0;
  for (int above = kParts; least < above;) {
    const int middle = least + (above - least) / 2;
    if (problems::CapacityOf(groups, middle / double{kParts}) >= bytes) {
      above = middle;
    } else {
      least = middle + 1;
    }
  }
  return least / double{kParts};
}

PolicyAnswer Solve(const graph::Profile& profile, const OpsFlags& flags) {
  const graph::OperatorPatterns patterns = flags.patterns.Patterns();
  const problems::Engine engine = ParseEngineFlag(flags.engine);
  solver::SearchLimits limits{.interrupted = &InterruptFlag()};
  if (!flags.time_limit.empty()) {
    limits.time_limit_s = ParseTimeLimit(flags.time_limit);
  }
  PolicyAnswer answer;
  answer.model = profile.model.name;
  // Drops the sign of a zero.
  answer.memory_budget =
      std::abs(ParseNumber(flags.memory_budget, "--memory-budget", 0, 1));
  answer.statistics = FindStatistics(profile, flags.module, patterns);
  const graph::SacStatistics& sac = answer.statistics.sac();
  const graph::OperatorGroups& groups = answer.statistics.groups;
  answer.rules = RuleTexts(sac, patterns);
  answer.capacity_bytes = problems::CapacityOf(groups, answer.memory_budget);
  answer.solution =
      engine == problems::Engine::kCbc
          ? problems::SolveOperatorsByCbc(sac, patterns, answer.capacity_bytes,
                                          limits)
          : problems::SolveOperators(groups, answer.capacity_bytes, limits);
  const int64_t forced_bytes = groups.ForcedBytes();
  if (answer.HasPolicy()) {
    const OperatorPolicy& policy = answer.solution.policy;
    if (const auto broken =
            problems::FirstBrokenRule(sac,
                                      {.save = policy.save,
                                       .memory_budget = answer.memory_budget,
                                       .capacity_bytes = answer.capacity_bytes,
                                       .saved_bytes = policy.saved_bytes,
                                       .saved_ms = policy.saved_ms,
                                       .recompute_ms = policy.recompute_ms},
                                      patterns)) {
      throw std::logic_error("the policy fails its check: " + *broken);
    }
  } else if (answer.solution.status == SearchStatus::kNoSolution) {
    return answer;
  } else if (forced_bytes <= answer.capacity_bytes) {
    throw std::logic_error(fmt::format(
        "engine {} found no policy although one fits", answer.solution.engine));
  } else {
    answer.minimum = LeastShare(groups, forced_bytes);
  }
  return answer;
}

nlohmann::ordered_json LimitJson(const OperatorSolution& solution) {
  const auto limit = problems::LimitName(solution.stopped_by);
  return limit ? nlohmann::ordered_json(*limit) : nullptr;
}

std::string ToJson(const PolicyAnswer& answer) {
  const OperatorPolicy& policy = answer.solution.policy;
  const graph::SacStatistics& sac = answer.statistics.sac();
  nlohmann::ordered_json json;
  json["module"] = answer.statistics.module->fqn;
  json["memory_budget"] = answer.memory_budget;
  json["capacity_bytes"] = answer.capacity_bytes;
  json["status"] = solver::NameOf(answer.solution.status, "no_policy");
  json["limit"] = LimitJson(answer.solution);
  if (answer.minimum) json["minimum_memory_budget"] = *answer.minimum;
  json["policy"] = nlohmann::ordered_json::array();
  json["ops"] = nlohmann::ordered_json::array();
  for (size_t op = 0; op < policy.save.size(); ++op) {
    json["policy"].push_back(static_cast<int>(policy.save[op]));
    json["ops"].push_back({{"index", op},
                           {"name", sac.func_names[op]},
                           {"runtime_ms", sac.runtimes[op]},
                           {"memory_bytes", sac.memory[op]},
                           {"decision", policy.save[op] ? "save" : "recompute"},
                           {"rule", answer.rules[op]}});
  }
  if (answer.HasPolicy()) {
    json["saved_bytes"] = policy.saved_bytes;
    json["saved_ms"] = policy.saved_ms;
    json["recompute_ms"] = policy.recompute_ms;
    json["bound_ms"] = answer.solution.bound_ms;
  }
  json["solver"] = {{"name", answer.solution.engine},
                    {"seconds", answer.solution.seconds},
                    {"nodes", answer.solution.nodes}};
  return graph::IndentedText(json);
}

// Returns a time with more digits, since operators may take microseconds.
std::string FormatShortMs(double ms) { return fmt::format("{:.4f} ms", ms); }

std::string OperatorTable(const PolicyAnswer& answer,
                          const Terminal& terminal) {
  const OperatorPolicy& policy = answer.solution.policy;
  const graph::SacStatistics& sac = answer.statistics.sac();
  using enum Table::Align;
  Table table({kRight, kLeft, kRight, kRight, kLeft, kLeft});
  table.AddRow({"", "operator", "run-time", "memory", "decision", "rule"});
  int64_t total = 0;
  int64_t saved = 0;
  for (size_t op = 0; op < policy.save.size(); ++op) {
    total += sac.memory[op];
    if (policy.save[op]) ++saved;
    table.AddRow({fmt::format("{}", op), graph::OneLine(sac.func_names[op], 60),
                  FormatShortMs(sac.runtimes[op]),
                  graph::FormatBytes(sac.memory[op]),
                  policy.save[op] ? "save" : "recompute", answer.rules[op]});
  }
  table.AddRule();
  const auto count = static_cast<int64_t>(policy.save.size());
  table.AddRow({FormatCount(saved), "saved", FormatShortMs(policy.saved_ms),
                graph::FormatBytes(policy.saved_bytes)});
  table.AddRow({FormatCount(count - saved), "recomputed",
                FormatShortMs(policy.recompute_ms),
                graph::FormatBytes(total - policy.saved_bytes)});
  return table.ToString(terminal);
}

// The reason why there is no policy: in a word, and explained.
struct Reason {
  std::string word;
  std::string text;
};

std::optional<Reason> ReasonForNone(const PolicyAnswer& answer) {
  const OperatorSolution& solution = answer.solution;
  if (solution.status == SearchStatus::kNoSolution) {
    return Reason{
        "no policy",
        fmt::format(": {} before a policy was found\n",
                    LimitText(problems::LimitName(solution.stopped_by)))};
  }
  if (answer.HasPolicy()) return std::nullopt;
  return Reason{
      "infeasible",
      fmt::format(": the operators that must be saved take {}\n"
                  "the least memory budget that works: {:.6f}\n",
                  FormatBytesExactly(answer.statistics.groups.ForcedBytes()),
                  *answer.minimum)};
}

std::string Verdict(const PolicyAnswer& answer, const Terminal& terminal) {
  if (const auto reason = ReasonForNone(answer)) {
    return terminal.Yellow(reason->word) + reason->text;
  }
  const OperatorSolution& solution = answer.solution;
  const bool is_optimal = solution.status == SearchStatus::kOptimal;
  const double ms = solution.policy.recompute_ms;
  const double gap = ms > 0 ? (ms - solution.bound_ms) / ms : 0;
  const std::string limit = LimitText(problems::LimitName(solution.stopped_by));
  return fmt::format(
      "{}{}: no policy within the capacity recomputes less{} (gap {}, {:.3f} "
      "s, {} {})\n",
      is_optimal ? terminal.Green("optimal") : terminal.Yellow("feasible"),
      is_optimal ? "" : ", " + limit,
      is_optimal ? "" : " than " + FormatShortMs(solution.bound_ms),
      is_optimal ? "0" : FormatPercentUp(gap), solution.seconds,
      FormatCount(solution.nodes),
      solution.engine == "cbc" ? "nodes of CBC" : "labels");
}

std::string ToText(const PolicyAnswer& answer, const Terminal& terminal) {
  const graph::SacStatistics& sac = answer.statistics.sac();
  double runtime = 0;
  for (const double ms : sac.runtimes) runtime += ms;
  std::string text = fmt::format(
      "{} of {}, {} operators, memory {}, run-time {}\n"
      "memory budget {}, capacity {}\n\n",
      terminal.Bold(graph::OneLine(answer.statistics.module->fqn, 400)),
      graph::OneLine(answer.model), FormatCount(std::ssize(sac.func_names)),
      graph::FormatBytes(answer.statistics.groups.TotalBytes()),
      FormatShortMs(runtime), answer.memory_budget,
      FormatBytesExactly(answer.capacity_bytes));
  if (answer.HasPolicy()) {
    const std::vector<char>& save = answer.solution.policy.save;
    text += fmt::format(
                "[{}]\n\n",
                fmt::join(std::vector<int>(save.begin(), save.end()), ", ")) +
            OperatorTable(answer, terminal) + "\n";
  }
  return text + Verdict(answer, terminal);
}

int RunOps(const OpsFlags& flags, const Terminal& terminal) {
  const graph::Profile profile = ReadProfileOrTrace(flags.profile).profile;
  const PolicyAnswer answer = Solve(profile, flags);
  if (!flags.output.empty()) graph::WriteFile(flags.output, ToJson(answer));
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
  const std::optional<Reason> reason = ReasonForNone(answer);
  if (!reason) return kExitOk;
  return terminal.Explain(reason->word + reason->text,
                          answer.solution.status == SearchStatus::kNoSolution
                              ? kExitLimit
                              : kExitInfeasible);
}

}  // namespace

Command AddModulePolicyCommand(CLI::App& program) {
  auto flags = std::make_shared<OpsFlags>();
  CLI::App* app = program.add_subcommand(
      "policy", "Choose which operators of a module to save");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option("MODULE", flags->module, "FQN of a module that has operators")
      ->type_name("FQN")
      ->required();
  app->add_option("--memory-budget", flags->memory_budget,
                  "share of the operators' memory that may be saved, 0 to 1")
      ->required()
      ->type_name("F");
  flags->patterns.AddTo(*app);
  app->add_option("--engine", flags->engine,
                  "algorithm: auto (default), labels or cbc; both are exact")
      ->type_name("NAME");
  app->add_option("--time-limit", flags->time_limit,
                  "stop after S seconds with the best policy so far; none "
                  "(default): no limit")
      ->type_name("S");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan module policy example:profiles/gpt2_small "
      "GPT2LMHeadModel.transformer.h.0 --memory-budget 0.5\n"
      "Exit status: 0 a policy was found, 2 bad input, 3 proven infeasible,\n"
      "4 a limit was hit before a policy was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunOps(*flags, terminal);
          }};
}

}  // namespace acplan::cli
