#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/calculon/search_flags.h"
#include "cli/command.h"
#include "cli/input/file_names.h"
#include "costmodel/calculon/llm/records.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

TimedOutcome Count(const costmodel::SearchProblem& problem,
                   const costmodel::SearchOptions& options,
                   const Terminal& terminal) {
  return RunSearch(options, terminal,
                   [&](const costmodel::SearchOptions& watched) {
                     return FindBest(problem, watched);
                   });
}

TimedOutcome WriteAll(const costmodel::SearchProblem& problem,
                      const costmodel::SearchOptions& options,
                      const Terminal& terminal, graph::FileWriter& file) {
  file.Append(costmodel::CsvHeading() + "\n");
  return RunSearch(
      options, terminal, [&](const costmodel::SearchOptions& watched) {
        return ListAll(problem, watched,
                       [&](const std::string& rows) { file.Append(rows); });
      });
}

std::string ShardLine(const SearchFlags& flags,
                      const costmodel::SearchOptions& options,
                      const TimedOutcome& timed) {
  return fmt::format("#{} {}\n", kShardKey,
                     graph::CompactText(ToJson(
                         ShardNote{.command = "llm-all-executions",
                                   .search = SearchDigest(flags, ""),
                                   .shard = options.shard,
                                   .counts = timed.outcome.counts,
                                   .executions = timed.outcome.counts.good,
                                   .seconds = timed.seconds})));
}

int RunAllExecutions(const SearchFlags& flags, const Terminal& terminal) {
  RequireExtension(flags.output, {".csv", ".csv.gz"});
  const costmodel::SearchOptions options = flags.Options();
  const costmodel::SearchProblem problem = flags.Problem(terminal);
  ReportTotal(CountSpace(problem, options.shard), terminal);

  std::optional<graph::FileWriter> file;
  if (!flags.debug) file.emplace(flags.output);
  const TimedOutcome timed = file ? WriteAll(problem, options, terminal, *file)
                                  : Count(problem, options, terminal);
  ReportCounts(timed.outcome.counts, timed.seconds, terminal);
  WarnInterrupted(timed, terminal);
  if (flags.IsSharded() && file) {
    if (timed.outcome.was_interrupted) return ReportUnfinished(terminal);
    file->Append(ShardLine(flags, options, timed));
    file->Commit();
    return kExitOk;
  }
  if (timed.outcome.counts.good == 0) {
    if (timed.outcome.was_interrupted) return ReportUnfinished(terminal);
    const int exit_code = ReportNone(flags.none_ok, terminal);
    if (exit_code != kExitOk) return exit_code;
  }
  if (!file) return kExitOk;
  terminal.Report(ResultLevel::kInfo, "Output: " + flags.output);
  file->Commit();
  return kExitOk;
}

}  // namespace

Command AddLlmAllExecutionsCommand(CLI::App& program) {
  auto flags = std::make_shared<SearchFlags>();
  CLI::App* app =
      program
          .add_subcommand(
              "llm-all-executions",
              "List all feasible ways to train a language model on a system")
          ->alias("lae");
  flags->AddTo(*app, "write one row per execution here (.csv or .csv.gz)",
               "compute all executions, write nothing");
  app->footer(
      "Example:\n  acplan calculon llm-all-executions "
      "example:megatron-22B 8 4 "
      "float16 example:a100_80g all.csv.gz\n"
      "Exit status: 0 listed, 2 bad input, 3 nothing is feasible, 4 "
      "interrupted before anything was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunAllExecutions(*flags, terminal);
          }};
}

}  // namespace acplan::cli
