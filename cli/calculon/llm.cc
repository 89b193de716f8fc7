#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/calculon/llm_debug_text.h"
#include "cli/calculon/llm_input.h"
#include "cli/calculon/llm_text.h"
#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "costmodel/calculon/llm/layer_listing.h"
#include "costmodel/calculon/llm/records.h"
#include "costmodel/calculon/llm/statistics.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/text_value.h"

namespace acplan::cli {

namespace {

struct LlmFlags {
  StrategyFlags strategy;
  std::string stats;
  std::string peers;
  bool layers = false;
  bool json = false;
};

void RequireExtensions(const LlmFlags& flags) {
  const std::vector<std::string> extensions = {".json", ".json.gz"};
  if (!flags.stats.empty() && flags.stats != "-") {
    if (flags.json) {
      throw InputError("--json: cannot be combined with STATS");
    }
    RequireExtension(flags.stats, extensions);
  }
  if (!flags.peers.empty()) RequireExtension(flags.peers, extensions);
}

LlmResult Compute(const LlmFlags& flags, const Terminal& terminal) {
  const auto& [application, execution, system] = flags.strategy;
  LlmResult result{.model = ReadModelInput(application, terminal),
                   .system = {},
                   .execution = ReadExecutionInput(execution),
                   .evaluation = {}};
  result.system = ReadSystemInput(system, terminal);
  result.evaluation = Evaluate(result.model, result.system, result.execution);
  RefuseContradiction(execution, result.evaluation.verdict, result.model,
                      result.system, result.execution);
  return result;
}

nlohmann::ordered_json StatisticsJson(const LlmResult& result,
                                      const costmodel::Statistics& statistics,
                                      bool with_layers) {
  nlohmann::ordered_json json = costmodel::ToJson(statistics);
  if (with_layers) {
    json["layers"] = costmodel::ToJson(
        costmodel::ListLayers(result.model, result.system, result.execution));
  }
  return json;
}

graph::NamedText FileOf(const std::string& path,
                        const nlohmann::ordered_json& json) {
  return {path, costmodel::ResultText(json, path.ends_with(".gz"))};
}

void WriteAndShow(const LlmFlags& flags, const LlmResult& result,
                  const Terminal& terminal) {
  const costmodel::Statistics statistics = ComputeStatistics(
      result.model, result.system, result.execution, result.evaluation);
  const bool has_file = !flags.stats.empty() && flags.stats != "-";
  std::vector<graph::NamedText> files;
  if (has_file) {
    files.push_back(
        FileOf(flags.stats, StatisticsJson(result, statistics, flags.layers)));
  }
  if (!flags.peers.empty()) {
    files.push_back(
        FileOf(flags.peers, costmodel::PeersJson(result.execution)));
  }
  graph::WriteFiles(files);
  if (terminal.Reports(ResultLevel::kDebug)) {
    terminal.Report(ResultLevel::kDebug, DebugText(result, statistics));
  }
  if (has_file) return;
  if (flags.stats == "-") {
    const graph::TextValue system = graph::ParseTextValue(
        graph::ReadJsonText(flags.strategy.system), flags.strategy.system);
    terminal.Report(ResultLevel::kInfo,
                    CalculonText(result, statistics, system));
  } else if (flags.json) {
    terminal.Print(
        graph::IndentedText(StatisticsJson(result, statistics, flags.layers)));
  } else {
    terminal.Report(
        ResultLevel::kInfo,
        LlmTable(result, statistics, FileStem(flags.strategy.application),
                 FileStem(flags.strategy.system), terminal));
  }
}

int RunLlm(const LlmFlags& flags, const Terminal& terminal) {
  RequireExtensions(flags);
  const LlmResult result = Compute(flags, terminal);
  if (!result.evaluation.verdict.Fits()) {
    return ReportInfeasible(result, terminal);
  }
  WriteAndShow(flags, result, terminal);
  return kExitOk;
}

}  // namespace

Command AddLlmCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmFlags>();
  CLI::App* app = program.add_subcommand(
      "llm", "Estimate the cost of training or running a language model");
  flags->strategy.AddTo(*app, "strategy (.json or .json.gz)");
  MarkAsOutput(
      app->add_option("STATS", flags->stats,
                      "write the statistics here (.json or .json.gz); -: print "
                      "them as Calculon does; none: print tables"));
  MarkAsOutput(app->add_option("-p,--peers", flags->peers,
                               "write the groups of processors that "
                               "communicate (.json or .json.gz)")
                   ->type_name("FILE"));
  app->add_flag("-l,--layers", flags->layers,
                "add the layers of a block to the statistics");
  app->add_flag("--json", flags->json, "print the statistics as JSON");
  app->footer(
      "Example:\n  acplan calculon llm example:megatron-22B "
      "example:validation/seqsel/tab5/megatron-22B_full "
      "example:a100_80g\n"
      "Exit status: 0 computed, 2 bad input, 3 infeasible.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlm(*flags, terminal);
          }};
}

}  // namespace acplan::cli
