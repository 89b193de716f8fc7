#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "costmodel/calculon/results/result_csv.h"
#include "graph/base/file_io.h"

namespace acplan::cli {

namespace {

struct CsvFlags {
  std::string results;
  std::string output;
};

int RunCsv(const CsvFlags& flags) {
  graph::WriteFile(flags.output, costmodel::ResultCsv(flags.results));
  return kExitOk;
}

}  // namespace

Command AddLlmCsvCommand(CLI::App& program) {
  auto flags = std::make_shared<CsvFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-csv",
      "Convert the results of llm-optimal-execution from JSON to CSV");
  app->add_option("JSON", flags->results, "results (.json or .json.gz)")
      ->required();
  MarkAsOutput(
      app->add_option("CSV", flags->output, "write CSV here (.csv or .csv.gz)")
          ->required());
  app->footer(
      "Example:\n  acplan calculon llm-csv best.json best.csv\n"
      "Exit status: 0 written, 2 bad input.");
  return {app, [flags](const Terminal&) { return RunCsv(*flags); }};
}

}  // namespace acplan::cli
