#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/calculon/search_flags.h"
#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/flags.h"
#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/records.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

using nlohmann::ordered_json;

struct OptimalExecutionFlags {
  SearchFlags search;
  std::string top_n = "1";
  bool mbs_break = false;
  bool layers = false;
  bool no_tp_overlap = false;
  bool no_dp_overlap = false;
};

ordered_json EntryOf(const costmodel::SearchProblem& problem,
                     const costmodel::Candidate& candidate, bool with_layers) {
  const costmodel::Execution& execution = candidate.execution;
  const costmodel::Evaluation evaluation =
      Evaluate(problem.model, problem.system, execution);
  ordered_json stats = costmodel::ToJson(
      ComputeStatistics(problem.model, problem.system, execution, evaluation));
  if (with_layers) {
    stats["layers"] = costmodel::ToJson(
        costmodel::ListLayers(problem.model, problem.system, execution));
  }
  return {{"execution", costmodel::ToJson(execution)},
          {"stats", std::move(stats)}};
}

std::vector<ordered_json> EntriesOf(const costmodel::SearchProblem& problem,
                                    const costmodel::SearchOutcome& outcome,
                                    bool with_layers) {
  std::vector<ordered_json> entries;
  for (const costmodel::Candidate& candidate : outcome.best) {
    entries.push_back(EntryOf(problem, candidate, with_layers));
  }
  return entries;
}

void WriteShard(const OptimalExecutionFlags& flags,
                const costmodel::SearchOptions& options,
                const TimedOutcome& timed,
                const std::vector<ordered_json>& entries) {
  ordered_json json;
  json[std::string(kShardKey)] = ToJson(ShardNote{
      .command = "llm-optimal-execution",
      .search = SearchDigest(
          flags.search, fmt::format("{}{}{}{}{}", flags.mbs_break, flags.layers,
                                    flags.no_tp_overlap, flags.no_dp_overlap,
                                    flags.search.debug)),
      .shard = options.shard,
      .top_n = options.top_n,
      .counts = timed.outcome.counts,
      .executions = std::ssize(entries),
      .seconds = timed.seconds});
  json.update(RankedJson(entries));
  graph::WriteFile(
      flags.search.output,
      costmodel::ResultText(json, flags.search.output.ends_with(".gz")));
}

int RunOptimalExecution(const OptimalExecutionFlags& flags,
                        const Terminal& terminal) {
  const SearchFlags& search = flags.search;
  std::vector<std::string> extensions = {".json", ".json.gz"};
  if (!search.IsSharded()) {
    extensions.insert(extensions.end(), {".csv", ".csv.gz"});
  }
  costmodel::SearchOptions options = search.Options();
  options.top_n = ParseWhole(flags.top_n, "--top-n", 1, 1'000'000'000);
  options.breaks_microbatches = flags.mbs_break;
  options.counts_only = search.debug;
  RequireExtension(search.output, extensions);
  costmodel::SearchProblem problem = search.Problem(terminal);
  problem.allows_tensor_overlap = !flags.no_tp_overlap;
  problem.allows_data_overlap = !flags.no_dp_overlap;

  const TimedOutcome timed = RunSearch(
      options, terminal, [&](const costmodel::SearchOptions& watched) {
        return FindBest(problem, watched);
      });
  const costmodel::SearchOutcome& outcome = timed.outcome;
  ReportTotal(outcome.counts.total, terminal);
  ReportCounts(outcome.counts, timed.seconds, terminal);
  WarnInterrupted(timed, terminal);
  if (search.debug) return kExitOk;
  const std::vector<ordered_json> entries =
      EntriesOf(problem, outcome, flags.layers);
  if (search.IsSharded()) {
    if (outcome.was_interrupted) return ReportUnfinished(terminal);
    WriteShard(flags, options, timed, entries);
    return kExitOk;
  }
  if (outcome.best.empty()) {
    if (outcome.was_interrupted) return ReportUnfinished(terminal);
    const int exit_code = ReportNone(search.none_ok, terminal);
    if (exit_code != kExitOk) return exit_code;
  } else {
    terminal.Report(
        ResultLevel::kInfo,
        "Best sample rate: " + graph::FloatText(outcome.best[0].sample_rate));
  }
  terminal.Report(ResultLevel::kInfo, "Output: " + search.output);
  WriteRanked(search.output, entries);
  return kExitOk;
}

}  // namespace

Command AddLlmOptimalExecutionCommand(CLI::App& program) {
  auto flags = std::make_shared<OptimalExecutionFlags>();
  CLI::App* app =
      program
          .add_subcommand(
              "llm-optimal-execution",
              "Find the fastest ways to train a language model on a system")
          ->alias("loe");
  flags->search.AddTo(
      *app, "write the best executions here (.json or .csv, either with .gz)",
      "count the executions, compute and write nothing");
  app->add_flag("-m,--mbs-break", flags->mbs_break,
                "do not try larger microbatches than an infeasible one");
  app->add_option("-t,--top-n", flags->top_n,
                  "number of executions to write (1)")
      ->type_name("N");
  app->add_flag("-l,--layers", flags->layers,
                "add the layers of a block to the statistics");
  app->add_flag("--no-tp-overlap", flags->no_tp_overlap,
                "do not overlap tensor-parallel communication");
  app->add_flag("--no-dp-overlap", flags->no_dp_overlap,
                "do not overlap data-parallel communication");
  app->footer(
      "Examples:\n"
      "  acplan calculon llm-optimal-execution example:turing-530B "
      "5128 2520 "
      "float16 example:a100_80g best.json -m -t 10\n"
      "  acplan calculon llm-optimal-execution example:megatron-22B "
      "64 64 "
      "float16 example:a100_80g part1.json --shard 1/2\n"
      "  acplan calculon llm-optimal-execution example:megatron-22B "
      "64 64 "
      "float16 example:a100_80g part2.json --shard 2/2\n"
      "Exit status: 0 found, 2 bad input, 3 nothing is feasible, 4 interrupted "
      "before anything was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunOptimalExecution(*flags, terminal);
          }};
}

}  // namespace acplan::cli
