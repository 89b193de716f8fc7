#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/dataflow/dataflow_analysis.h"
#include "graph/dataflow/dataflow_graph.h"

namespace acplan::cli {

using graph::DataflowGraph;
using graph::DataflowNode;
using graph::GraphInfo;

namespace {

struct DataflowFlags {
  std::string graph;
  std::string output;
  bool json = false;
};

struct NodeCounts {
  std::array<int64_t, graph::kDataflowStages> by_stage = {};
  int64_t saved = 0;
};

NodeCounts CountNodes(const DataflowGraph& graph) {
  NodeCounts counts;
  for (const DataflowNode& node : graph.nodes) {
    ++counts.by_stage[static_cast<size_t>(node.stage)];
    if (node.saved) ++counts.saved;
  }
  return counts;
}

std::string_view StageName(size_t stage) {
  return ToString(static_cast<graph::DataflowStage>(stage));
}

std::string ToJson(const DataflowGraph& graph, const GraphInfo& info) {
  const NodeCounts counts = CountNodes(graph);
  nlohmann::ordered_json json;
  json["model"] = graph.model.name;
  for (size_t stage = 0; stage < graph::kDataflowStages; ++stage)
    json["nodes"][std::string(StageName(stage))] = counts.by_stage[stage];
  json["saved"] = counts.saved;
  json["fwd_flop"] = info.fwd_flop;
  json["bwd_flop"] = info.bwd_flop;
  json["fwd_mem_in"] = info.fwd_mem_in;
  json["fwd_mem_tmp"] = info.fwd_mem_tmp;
  json["bwd_mem_tmp"] = info.bwd_mem_tmp;
  json["bwd_mem_out"] = info.bwd_mem_out;
  return graph::IndentedText(json);
}

std::string ToText(const DataflowGraph& graph, const GraphInfo& info,
                   const Terminal& terminal) {
  const NodeCounts counts = CountNodes(graph);
  std::string text =
      fmt::format("{}, {} nodes:",
                  terminal.Bold(graph.model.name.empty()
                                    ? "graph"
                                    : graph::OneLine(graph.model.name)),
                  FormatCount(std::ssize(graph.nodes)));
  for (size_t stage = 0; stage < graph::kDataflowStages; ++stage) {
    text += fmt::format("{} {} {}", stage == 0 ? "" : ",",
                        FormatCount(counts.by_stage[stage]), StageName(stage));
  }
  text += fmt::format("; {} saved\n\n", FormatCount(counts.saved));
  using enum Table::Align;
  Table table({kLeft, kRight, kLeft});
  table.AddRow({"", "total", "meaning"});
  const auto add = [&](const char* name, const std::string& amount,
                       const char* meaning) {
    table.AddRow({name, amount, meaning});
  };
  add("fwd_flop", FormatCount(info.fwd_flop), "FLOPs before backward");
  add("bwd_flop", FormatCount(info.bwd_flop), "FLOPs of backward");
  add("fwd_mem_in", graph::FormatBytes(info.fwd_mem_in),
      "saved inputs and parameters");
  add("fwd_mem_tmp", graph::FormatBytes(info.fwd_mem_tmp),
      "saved forward values");
  add("bwd_mem_tmp", graph::FormatBytes(info.bwd_mem_tmp),
      "backward values at their peak");
  add("bwd_mem_out", graph::FormatBytes(info.bwd_mem_out), "gradients");
  return text + table.ToString(terminal);
}

int RunDataflow(const DataflowFlags& flags, const Terminal& terminal) {
  const DataflowGraph graph = graph::ReadDataflowGraph(flags.graph);
  const GraphInfo info = graph::Analyse(graph);
  if (!flags.output.empty())
    graph::WriteFile(flags.output, ToJson(graph, info));
  terminal.Print(flags.json
                     ? ToJson(graph, info)
                     : BrokenLines(ToText(graph, info, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddModuleDataflowCommand(CLI::App& program) {
  auto flags = std::make_shared<DataflowFlags>();
  CLI::App* app = program.add_subcommand(
      "dataflow", "Compute memory and FLOPs of a forward and backward graph");
  app->add_option("GRAPH", flags->graph, "dataflow graph (.json or .json.gz)")
      ->required();
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan module dataflow example:dataflow/gpt2_tiny\n"
      "Exit status: 0 analysed, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunDataflow(*flags, terminal);
          }};
}

}  // namespace acplan::cli
