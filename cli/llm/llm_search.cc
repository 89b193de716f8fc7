#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/search_flags.h"
#include "cli/terminal/text.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "costmodel/planning/plan_record.h"
#include "costmodel/planning/plan_statistics.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Candidate;
using costmodel::SearchOptions;
using costmodel::SearchOutcome;
using costmodel::SearchProblem;
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

// What was asked, after its flags were checked.
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

// With the space opened to what the filters ask for. Refuses those that none can
// pass.
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

// The search with none, attn_only and full, and the one with plans.
struct Answer {
  TimedOutcome fixed;
  std::optional<TimedOutcome> plans;

  const SearchOutcome& best() const {
    return plans ? plans->outcome : fixed.outcome;
  }
  bool was_interrupted() const {
    return fixed.outcome.was_interrupted ||
           (plans && plans->outcome.was_interrupted);
  }
};

double BestRate(const SearchOutcome& outcome) {
  return outcome.best.empty() ? 0 : outcome.best.front().sample_rate;
}

Answer Search(const Question& question, double known_rate,
              const Terminal& terminal) {
  const auto run = [&](bool plans, int64_t top_n, double least_rate) {
    SearchProblem problem = question.problem;
    problem.plans = plans;
    SearchOptions options = question.options;
    options.top_n = top_n;
    options.least_rate = least_rate;
    return RunSearch(options, terminal, [&](const SearchOptions& watched) {
      return FindBest(problem, watched);
    });
  };
  Answer answer;
  const int64_t top_n = question.options.top_n;
  if (!question.problem.plans) {
    answer.fixed = run(false, top_n, 0);
    return answer;
  }
  // Of most strategies there are several with other recomputation.
  constexpr int64_t kPolicies = 3;
  answer.fixed = run(false, kPolicies * top_n, 0);
  SearchOutcome& fixed = answer.fixed.outcome;
  if (fixed.was_interrupted) {
    fixed.best.resize(std::min(fixed.best.size(), static_cast<size_t>(top_n)));
    return answer;
  }
  const std::vector<Candidate> reached =
      costmodel::PlanCandidates(question.problem, fixed.best, top_n);
  double least = static_cast<int64_t>(reached.size()) < top_n
                     ? 0
                     : reached.back().sample_rate;
  if (top_n == 1) least = std::max(least, known_rate);
  answer.plans = run(true, top_n, least);
  // Before it came to them.
  if (answer.plans->outcome.was_interrupted) {
    std::vector<Candidate>& best = answer.plans->outcome.best;
    best = costmodel::MergeBest(best, reached, top_n);
  }
  return answer;
}

bool IsProven(const SearchOutcome& outcome) {
  return !outcome.was_interrupted && !outcome.best.empty() &&
         outcome.rate_bound <= outcome.best.front().sample_rate * (1 + 1e-9);
}

ordered_json PlanEntry(const SearchProblem& problem,
                       const Candidate& candidate) {
  const costmodel::StrategyPlan plan = costmodel::PlanStrategy(
      problem.model, problem.system, candidate.execution);
  RequireWholePlan(problem.model, problem.system, candidate.execution, plan);
  ordered_json entry = {
      {"execution", costmodel::ToJson(candidate.execution)},
      {"stats", costmodel::PlanStatistics(candidate.execution, plan)}};
  entry["stats"]["budget_bytes"] = costmodel::NumberJson(
      std::min(problem.system.mem1.capacity, costmodel::kMostPlanBudget));
  entry["plan"] = ToJson(costmodel::RecordPlan(
      problem.model, problem.system, candidate.execution, plan))["stages"];
  return entry;
}

ordered_json FixedEntry(const SearchProblem& problem,
                        const Candidate& candidate) {
  const costmodel::Evaluation evaluation = Evaluate(
      problem.model, problem.system, candidate.execution, problem.corrections);
  return {{"execution", costmodel::ToJson(candidate.execution)},
          {"stats", costmodel::ToJson(
                        ComputeStatistics(problem.model, problem.system,
                                          candidate.execution, evaluation))}};
}

std::vector<ordered_json> EntriesOf(const SearchProblem& problem,
                                    const Answer& answer) {
  std::vector<ordered_json> entries;
  for (const Candidate& candidate : answer.best().best) {
    entries.push_back(answer.plans ? PlanEntry(problem, candidate)
                                   : FixedEntry(problem, candidate));
  }
  return entries;
}

std::string OffloadText(const costmodel::Execution& execution) {
  std::string text;
  if (execution.weight_offload) text += 'w';
  if (execution.activations_offload) text += 'a';
  if (execution.optimizer_offload) text += 'o';
  return text.empty() ? "-" : text;
}

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::vector<std::string> StrategyCells(const costmodel::Execution& e) {
  return {std::to_string(e.tensor_par),
          std::to_string(e.pipeline_par),
          std::to_string(e.data_par),
          std::to_string(e.pipeline_interleaving),
          std::to_string(e.batch_size),
          std::to_string(e.microbatch_size),
          std::string(costmodel::kTensorCommTypeNames[static_cast<size_t>(
              e.tensor_par_comm_type)]),
          std::string(costmodel::kTensorOverlapNames[static_cast<size_t>(
              e.tensor_par_overlap)]),
          YesNo(e.data_par_overlap),
          YesNo(e.optimizer_sharding),
          OffloadText(e)};
}

std::vector<std::string> StrategyHeading() {
  return {"TP",   "PP",      "DP",         "chunks",  "batch",  "microbatch",
          "comm", "overlap", "DP overlap", "sharded", "offload"};
}

Table StrategyTable(size_t more) {
  return Table(std::vector<Table::Align>(StrategyHeading().size() + more,
                                         Table::Align::kRight));
}

// What is recomputed in the first stage, as a share of the batch.
std::string RecomputeText(const SearchProblem& problem, bool plans,
                          const Candidate& candidate) {
  const costmodel::Execution& execution = candidate.execution;
  if (!plans) {
    return std::string(costmodel::kRecomputeNames[static_cast<size_t>(
        execution.activation_recompute)]);
  }
  const costmodel::StrategyPlan plan =
      costmodel::PlanStrategy(problem.model, problem.system, execution);
  const double seconds =
      plan.times.recompute + plan.times.repeated_comm_exposed;
  return fmt::format("{:.1f}%", 100 * seconds / plan.times.total);
}

std::string BestText(const Question& question, const Answer& answer,
                     const Terminal& terminal) {
  Table table = StrategyTable(5);
  std::vector<std::string> heading = {"rank", "samples/s", "s a batch",
                                      "memory", "recompute"};
  std::ranges::copy(StrategyHeading(), std::back_inserter(heading));
  table.AddRow(heading);
  table.AddRule();
  size_t rank = 0;
  for (const Candidate& candidate : answer.best().best) {
    std::vector<std::string> row = {
        std::to_string(rank++), fmt::format("{:.5g}", candidate.sample_rate),
        fmt::format("{:.5g}",
                    static_cast<double>(candidate.execution.batch_size) /
                        candidate.sample_rate),
        graph::FormatManyBytes(candidate.memory),
        RecomputeText(question.problem, answer.plans.has_value(), candidate)};
    std::ranges::copy(StrategyCells(candidate.execution),
                      std::back_inserter(row));
    table.AddRow(row);
  }
  return table.ToString(terminal);
}

std::string PhaseText(const char* name, const TimedOutcome& timed) {
  const SearchOutcome& outcome = timed.outcome;
  return fmt::format(
      "{:<15}{:>13} strategies, {:>11} feasible, best {:.6g} samples/s ({:.2f} "
      "s, {}/s)",
      name, FormatCount(outcome.counts.total), FormatCount(outcome.counts.good),
      BestRate(outcome), timed.seconds,
      FormatCount(static_cast<int64_t>(
          timed.seconds > 0
              ? static_cast<double>(outcome.counts.total) / timed.seconds
              : 0)));
}

std::string ProofText(const SearchOutcome& outcome) {
  if (outcome.was_interrupted) return "interrupted: others may be faster";
  if (IsProven(outcome)) return "proven: no strategy with any plan is faster";
  return fmt::format(
      "no strategy with any plan is faster than {:.6g} ({:.3f}%)",
      outcome.rate_bound, 100 * (outcome.rate_bound / BestRate(outcome) - 1));
}

std::string SummaryText(const PlanSearchFlags& flags, const Question& question,
                        const Answer& answer) {
  std::string text = fmt::format(
      "{} processors, batch {}, {}, {} of memory\n\n", flags.search.num_procs,
      flags.search.max_batch, flags.search.datatype,
      graph::FormatManyBytes(question.problem.system.mem1.capacity));
  text += PhaseText("fixed policies", answer.fixed) + "\n";
  if (!answer.plans) return text;
  text += PhaseText("plans", *answer.plans) + "\n";
  const double fixed = BestRate(answer.fixed.outcome);
  const double best = BestRate(answer.plans->outcome);
  if (fixed > 0) {
    text +=
        fmt::format("{:<15}{:+.2f}% samples/s; ", "", 100 * (best / fixed - 1));
  } else {
    text += fmt::format("{:<15}no fixed policy fits; ", "");
  }
  return text + ProofText(answer.plans->outcome) + "\n";
}

int ReportNothing(bool was_interrupted) {
  if (was_interrupted) {
    throw LimitError("interrupted before anything was found");
  }
  WriteToStderr("acplan: no strategy fits\n");
  return kExitInfeasible;
}

void WriteShard(const PlanSearchFlags& flags, const Question& question,
                const Answer& answer,
                const std::vector<ordered_json>& entries) {
  std::string more =
      fmt::format("{}{}{}{}{}", question.problem.plans, flags.any_batch,
                  flags.no_tp_overlap, flags.no_dp_overlap, flags.budget);
  for (const std::string& fix : flags.fix) more += " " + fix;
  ordered_json json;
  json[std::string(kShardKey)] = ToJson(ShardNote{
      .command = "llm-search",
      .search = SearchDigest(flags.search, more),
      .shard = question.options.shard,
      .top_n = question.options.top_n,
      .ties_by_memory = question.problem.corrections.ties_by_memory,
      .counts = answer.best().counts,
      .seconds =
          answer.fixed.seconds + (answer.plans ? answer.plans->seconds : 0)});
  json.update(RankedJson(entries));
  graph::WriteFile(
      flags.search.output,
      costmodel::ResultText(json, flags.search.output.ends_with(".gz")));
}

// A budget and the fastest strategy that fits it.
struct FrontPoint {
  double budget = 0;
  Candidate best;
};

struct Front {
  std::vector<FrontPoint> points;
  bool was_interrupted = false;
};

// From the smallest budget on: what fits a budget fits all larger ones.
Front FindFront(Question question, const Terminal& terminal) {
  const double capacity = question.problem.system.mem1.capacity;
  question.options.top_n = 1;
  Front front;
  std::vector<FrontPoint>& points = front.points;
  for (int64_t i = 1; i <= question.budgets; ++i) {
    const double budget = std::floor(capacity * static_cast<double>(i) /
                                     static_cast<double>(question.budgets));
    question.problem.system.mem1.capacity = budget;
    const double known = points.empty() ? 0 : points.back().best.sample_rate;
    const Answer answer = Search(question, known, terminal);
    if (answer.was_interrupted()) {
      front.was_interrupted = true;
      break;
    }
    if (answer.best().best.empty()) continue;
    const Candidate& best = answer.best().best.front();
    if (best.sample_rate > known) points.push_back({budget, best});
  }
  return front;
}

int RunFront(const PlanSearchFlags& flags, const Question& question,
             const Terminal& terminal) {
  const Front front = FindFront(question, terminal);
  if (front.points.empty()) return ReportNothing(front.was_interrupted);
  Table table = StrategyTable(4);
  std::vector<std::string> heading = {"budget", "memory", "samples/s",
                                      "s a batch"};
  std::ranges::copy(StrategyHeading(), std::back_inserter(heading));
  table.AddRow(heading);
  table.AddRule();
  std::vector<ordered_json> entries;
  SearchProblem problem = question.problem;
  for (const FrontPoint& point : front.points) {
    std::vector<std::string> row = {
        graph::FormatManyBytes(point.budget),
        graph::FormatManyBytes(point.best.memory),
        fmt::format("{:.5g}", point.best.sample_rate),
        fmt::format("{:.5g}",
                    static_cast<double>(point.best.execution.batch_size) /
                        point.best.sample_rate)};
    std::ranges::copy(StrategyCells(point.best.execution),
                      std::back_inserter(row));
    table.AddRow(row);
    problem.system.mem1.capacity = point.budget;
    entries.push_back(problem.plans ? PlanEntry(problem, point.best)
                                    : FixedEntry(problem, point.best));
    entries.back()["stats"]["budget_bytes"] = costmodel::NumberJson(
        std::min(point.budget, costmodel::kMostPlanBudget));
  }
  if (!flags.search.output.empty()) WriteRanked(flags.search.output, entries);
  terminal.Print(table.ToString(terminal));
  if (front.was_interrupted) {
    terminal.Warn("interrupted: budgets above the last are missing");
  }
  return kExitOk;
}

int RunPlanSearch(const PlanSearchFlags& flags, const Terminal& terminal) {
  const SearchFlags& search = flags.search;
  if (!search.output.empty()) {
    std::vector<std::string> extensions = {".json", ".json.gz"};
    if (!search.IsSharded()) {
      extensions.insert(extensions.end(), {".csv", ".csv.gz"});
    }
    CheckResultOutput(search.output, extensions, search.Inputs());
  } else if (search.IsSharded()) {
    throw InputError("--shard: expected --output too");
  }
  const Question question = Ask(flags, terminal);
  if (question.budgets > 0) return RunFront(flags, question, terminal);

  Answer answer = Search(question, 0, terminal);
  if (search.IsSharded()) {
    if (answer.was_interrupted()) {
      throw LimitError("interrupted: the shard is not whole");
    }
    WriteShard(flags, question, answer, EntriesOf(question.problem, answer));
    return kExitOk;
  }
  if (answer.best().best.empty())
    return ReportNothing(answer.was_interrupted());
  const std::vector<ordered_json> entries = EntriesOf(question.problem, answer);
  if (!search.output.empty()) WriteRanked(search.output, entries);
  terminal.Print(SummaryText(flags, question, answer) + "\n" +
                 BestText(question, answer, terminal));
  if (answer.was_interrupted()) terminal.Warn("interrupted");
  return kExitOk;
}

}  // namespace

Command AddLlmSearchCommand(CLI::App& program) {
  auto flags = std::make_shared<PlanSearchFlags>();
  SearchFlags& search = flags->search;
  search.mode.mode = "corrected";
  CLI::App* app = program.add_subcommand(
      "llm-search",
      "Search the fastest strategies, each with its best checkpointing plan");
  app->add_option("APPLICATION", search.application,
                  "model (.json or .json.gz)")
      ->required();
  app->add_option("SYSTEM", search.system, "system (.json or .json.gz)")
      ->required();
  app->add_option("PROCS", search.num_procs, "processors")->required();
  app->add_option("BATCH", search.max_batch, "samples of a batch")->required();
  app->add_option("DATATYPE", search.datatype,
                  "float8, float16, float32 or bfloat16")
      ->required();
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
