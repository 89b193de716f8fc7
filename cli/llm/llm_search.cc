#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/search_flags.h"
#include "cli/llm/llm_search_text.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "costmodel/planning/plan_record.h"
#include "costmodel/planning/plan_statistics.h"
#include "costmodel/search/staged_search.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Candidate;
using costmodel::SearchOptions;
using costmodel::SearchProblem;
using costmodel::StagedOutcome;
using nlohmann::ordered_json;

struct PlanSearchFlags {
  SearchFlags search;
  std::string top_n = "10";
  std::string policies;
  std::vector<std::string> fix;
  std::string budget;
  std::string pareto;
  bool any_batch = false;
  bool no_tp_overlap = false;
  bool no_dp_overlap = false;
};

// A question whose flags were checked.
struct Question {
  SearchProblem problem;
  SearchOptions options;
  int64_t budgets = 0;  // of a front; 0: none
};

bool AllowsPlans(const costmodel::Corrections& corrections) {
  costmodel::Corrections all = costmodel::AllCorrections();
  all.one_batch_size = corrections.one_batch_size;
  return corrections == all;
}

bool WantsPlans(const PlanSearchFlags& flags,
                const costmodel::Corrections& corrections) {
  if (flags.policies == "fixed") return false;
  if (!flags.policies.empty() && flags.policies != "plan") {
    throw InputError(fmt::format("--policies: expected plan or fixed, found {}",
                                 graph::Quoted(flags.policies)));
  }
  const bool allowed = AllowsPlans(corrections);
  if (!allowed && !flags.policies.empty()) {
    throw InputError(
        "--policies: plan needs --mode corrected: in others recomputation is "
        "no sum over operators");
  }
  return allowed;
}

std::vector<costmodel::KeyFilter> ParseFilters(
    const std::vector<std::string>& fix, bool plans) {
  std::vector<costmodel::KeyFilter> filters;
  for (const std::string& text : fix) {
    filters.push_back(costmodel::ParseKeyFilter(text, "--fix"));
    const std::string_view key = costmodel::kExecutionKeys[filters.back().key];
    if (plans && (key == "activation_recompute" || key == "seq_par_ag_redo")) {
      throw InputError(fmt::format(
          "--fix: {} is for the plan to choose; --policies fixed searches it",
          key));
    }
  }
  return filters;
}

bool IsFiltered(const SearchProblem& problem, std::string_view key) {
  return !FiltersOn(problem.filters, {key}).empty();
}

// Opens the space to what the filters ask for. Refuses filters that no
// execution can pass.
SearchProblem Opened(SearchProblem problem) {
  if (IsFiltered(problem, "fused_activation")) {
    problem.fused_activation = {false, true};
  }
  if (IsFiltered(problem, "attention_type")) {
    problem.attention_types = {costmodel::AttentionType::kMultihead,
                               costmodel::AttentionType::kMultiquery};
  }
  const auto fields = FieldsOf(costmodel::Execution{
      .num_procs = problem.num_procs, .datatype = problem.datatype});
  for (const std::string_view key : {"num_procs", "datatype", "training"}) {
    for (const costmodel::KeyFilter& filter :
         FiltersOn(problem.filters, {key})) {
      if (filter.Allows(fields[filter.key])) continue;
      throw InputError(fmt::format(
          "--fix: {}: expected {}, the only one that is searched", key,
          std::visit([](const auto& value) { return fmt::format("{}", value); },
                     fields[filter.key])));
    }
  }
  return problem;
}

Question Ask(const PlanSearchFlags& flags, const Terminal& terminal) {
  Question question;
  question.options = flags.search.Options();
  question.options.top_n = ParseWhole(flags.top_n, "--top-n", 1, 1'000'000);
  SearchProblem& problem = question.problem;
  problem = flags.search.Problem(terminal);
  if (flags.any_batch) problem.corrections.one_batch_size = false;
  problem.allows_tensor_overlap = !flags.no_tp_overlap;
  problem.allows_data_overlap = !flags.no_dp_overlap;
  problem.plans = WantsPlans(flags, problem.corrections);
  problem.filters = ParseFilters(flags.fix, problem.plans);
  problem = Opened(std::move(problem));
  if (!flags.budget.empty()) {
    problem.system.mem1.capacity =
        static_cast<double>(graph::ParseByteSize(flags.budget, "--budget"));
  }
  if (!flags.pareto.empty()) {
    question.budgets = ParseWhole(flags.pareto, "--pareto", 2, 1000);
    if (flags.search.IsSharded()) {
      throw InputError("--shard: not together with --pareto");
    }
  }
  return question;
}

// Plans each strategy once, and checks its plan: none is shown that was not
// checked.
RankedStrategy Ranked(const SearchProblem& problem,
                      const Candidate& candidate) {
  if (!problem.plans) return {candidate, std::nullopt};
  costmodel::StrategyPlan plan = costmodel::PlanStrategy(
      problem.model, problem.system, candidate.execution);
  RequireWholePlan(problem.model, problem.system, candidate.execution, plan);
  return {candidate, std::move(plan)};
}

std::vector<RankedStrategy> Ranked(SearchProblem problem,
                                   const StagedOutcome& found) {
  problem.plans = found.plans.has_value();
  std::vector<RankedStrategy> strategies;
  for (const Candidate& candidate : found.Answer().best) {
    strategies.push_back(Ranked(problem, candidate));
  }
  return strategies;
}

// A strategy as files have it.
ordered_json EntryOf(const SearchProblem& problem,
                     const RankedStrategy& strategy) {
  const costmodel::Execution& execution = strategy.candidate.execution;
  ordered_json entry = {{"execution", costmodel::ToJson(execution)}};
  if (!strategy.plan) {
    entry["stats"] = costmodel::ToJson(
        ComputeStatistics(problem.model, problem.system, execution,
                          Evaluate(problem.model, problem.system, execution,
                                   problem.corrections)));
    return entry;
  }
  entry["stats"] = costmodel::PlanStatistics(execution, *strategy.plan);
  entry["stats"]["budget_bytes"] = costmodel::NumberJson(
      std::min(problem.system.mem1.capacity, costmodel::kMostPlanBudget));
  entry["plan"] = ToJson(costmodel::RecordPlan(
      problem.model, problem.system, execution, *strategy.plan))["stages"];
  return entry;
}

std::vector<ordered_json> EntriesOf(
    const SearchProblem& problem,
    const std::vector<RankedStrategy>& strategies) {
  std::vector<ordered_json> entries;
  for (const RankedStrategy& strategy : strategies) {
    entries.push_back(EntryOf(problem, strategy));
  }
  return entries;
}

int ReportNothing(bool was_interrupted, const Terminal& terminal) {
  if (was_interrupted) {
    throw LimitError("interrupted before anything was found");
  }
  return terminal.Complain("no strategy fits", kExitInfeasible);
}

void WriteShard(const PlanSearchFlags& flags, const Question& question,
                const StagedOutcome& found,
                const std::vector<ordered_json>& entries) {
  std::string other_flags =
      fmt::format("{}{}{}{}{}", question.problem.plans, flags.any_batch,
                  flags.no_tp_overlap, flags.no_dp_overlap, flags.budget);
  for (const std::string& fix : flags.fix) other_flags += " " + fix;
  ordered_json json;
  json[std::string(kShardKey)] = ToJson(ShardNote{
      .command = "llm-search",
      .search = SearchDigest(flags.search, other_flags),
      .shard = question.options.shard,
      .top_n = question.options.top_n,
      .ties_by_memory = question.problem.corrections.ties_by_memory,
      .counts = found.Answer().counts,
      .executions = std::ssize(entries),
      .seconds =
          found.fixed.seconds + (found.plans ? found.plans->seconds : 0)});
  json.update(RankedJson(entries));
  graph::WriteFile(
      flags.search.output,
      costmodel::ResultText(json, flags.search.output.ends_with(".gz")));
}

// Each stage with its progress line.
costmodel::SearchRunner ShowingProgress(const Terminal& terminal) {
  return
      [&terminal](const SearchProblem& problem, const SearchOptions& options) {
        return RunSearch(options, terminal,
                         [&](const SearchOptions& watched) {
                           return FindBest(problem, watched);
                         })
            .outcome;
      };
}

int RunFront(const PlanSearchFlags& flags, const Question& question,
             const Terminal& terminal) {
  const costmodel::RateFront front =
      FindRateFront(question.problem, question.options, question.budgets,
                    ShowingProgress(terminal));
  if (front.points.empty()) {
    return ReportNothing(front.was_interrupted, terminal);
  }
  std::vector<ordered_json> entries;
  SearchProblem problem = question.problem;
  for (const auto& [budget, best] : front.points) {
    problem.system.mem1.capacity = budget;
    entries.push_back(EntryOf(problem, Ranked(problem, best)));
    entries.back()["stats"]["budget_bytes"] =
        costmodel::NumberJson(std::min(budget, costmodel::kMostPlanBudget));
  }
  if (!flags.search.output.empty()) WriteRanked(flags.search.output, entries);
  terminal.Print(FrontTable(front, terminal));
  if (front.was_interrupted) {
    terminal.Warn("interrupted: budgets above the last are missing");
  }
  return kExitOk;
}

void CheckRankedOutput(const SearchFlags& search) {
  if (search.output.empty()) {
    if (search.IsSharded()) throw InputError("--shard: expected --output too");
    return;
  }
  std::vector<std::string> extensions = {".json", ".json.gz"};
  if (!search.IsSharded()) {
    extensions.insert(extensions.end(), {".csv", ".csv.gz"});
  }
  CheckResultOutput(search.output, extensions, search.Inputs());
}

int RunPlanSearch(const PlanSearchFlags& flags, const Terminal& terminal) {
  const SearchFlags& search = flags.search;
  CheckRankedOutput(search);
  const Question question = Ask(flags, terminal);
  if (question.budgets > 0) return RunFront(flags, question, terminal);

  const SearchProblem& problem = question.problem;
  const StagedOutcome found =
      FindBestInStages(problem, question.options, ShowingProgress(terminal));
  if (search.IsSharded()) {
    if (found.WasInterrupted()) {
      throw LimitError("interrupted: the shard is not whole");
    }
    WriteShard(flags, question, found,
               EntriesOf(problem, Ranked(problem, found)));
    return kExitOk;
  }
  if (found.Answer().best.empty()) {
    return ReportNothing(found.WasInterrupted(), terminal);
  }
  const std::vector<RankedStrategy> strategies = Ranked(problem, found);
  if (!search.output.empty()) {
    WriteRanked(search.output, EntriesOf(problem, strategies));
  }
  terminal.Print(SearchSummary(problem, found) + "\n" +
                 RankTable(strategies, terminal));
  if (found.WasInterrupted()) terminal.Warn("interrupted");
  return kExitOk;
}

void AddPositionals(CLI::App& app, SearchFlags& search) {
  app.add_option("APPLICATION", search.application, "model (.json or .json.gz)")
      ->required();
  app.add_option("SYSTEM", search.system, "system (.json or .json.gz)")
      ->required();
  app.add_option("PROCS", search.num_procs, "processors")->required();
  app.add_option("BATCH", search.max_batch, "samples of a batch")->required();
  app.add_option("DATATYPE", search.datatype,
                 "float8, float16, float32 or bfloat16")
      ->required();
}

}  // namespace

Command AddLlmSearchCommand(CLI::App& program) {
  auto flags = std::make_shared<PlanSearchFlags>();
  SearchFlags& search = flags->search;
  search.mode.mode = "corrected";
  CLI::App* app = program.add_subcommand(
      "llm-search",
      "Search the fastest strategies, each with its best checkpointing plan");
  AddPositionals(*app, search);
  app->add_option("-o,--output", search.output,
                  "write the best here (.json or .csv, with .gz packed)")
      ->type_name("FILE");
  app->add_option("-t,--top-n", flags->top_n, "how many (10)")->type_name("N");
  app->add_option("--policies", flags->policies,
                  "plan (default with --mode corrected): the best for each "
                  "strategy; fixed: none, attn_only and full")
      ->type_name("KIND");
  app->add_option("--fix", flags->fix,
                  "only strategies with this: KEY=VALUE,... or KEY=LOW..HIGH")
      ->type_name("KEY=VALUES")
      ->allow_extra_args(false);
  app->add_option("--budget", flags->budget,
                  "memory of a processor (default: the system's)")
      ->type_name("SIZE");
  app->add_option("--pareto", flags->pareto,
                  "the fastest strategy for N budgets up to that")
      ->type_name("N");
  app->add_flag("--any-batch", flags->any_batch,
                "also other batches: the largest multiple of the data "
                "parallelism up to BATCH");
  app->add_option("-f,--fused_activation", search.fused_activation,
                  "true (default), false or both")
      ->type_name("V");
  app->add_flag("--no-tp-overlap", flags->no_tp_overlap,
                "do not overlap tensor-parallel communication");
  app->add_flag("--no-dp-overlap", flags->no_dp_overlap,
                "do not overlap data-parallel communication");
  app->add_option("-c,--cpus", search.cpus, "threads (default: one a core)")
      ->type_name("N");
  app->add_option("--shard", search.shard,
                  "search the i-th of n parts; llm-merge puts their outputs "
                  "together")
      ->type_name("I/N");
  search.mode.AddTo(*app);
  app->footer(
      "Examples:\n"
      "  acplan llm-search data/models/turing-530B.json "
      "data/systems/a100_80g.json 512 512 float16\n"
      "  acplan llm-search data/models/megatron-22B.json "
      "data/systems/a100_80g.json 64 64 float16 --fix tensor_par=1..8 --fix "
      "weight_offload=false --pareto 10\n"
      "Exit status: 0 found, 2 bad input, 3 nothing is feasible, 4 interrupted "
      "before anything was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunPlanSearch(*flags, terminal);
          }};
}

}  // namespace acplan::cli
