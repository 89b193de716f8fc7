#include "graph/dataflow/dataflow_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/profile/model_json.h"

namespace acplan::graph {
namespace {

constexpr std::string_view kFormat = "acplan.dataflow";
constexpr int kVersion = 1;
// Indexed by DataflowStage.
constexpr std::array<std::string_view, kDataflowStages> kStageNames = {
    "placeholder", "forward", "loss", "backward"};

using NodeIndex = std::unordered_map<std::string, int32_t>;

DataflowStage ParseStage(const JsonField& field) {
  const auto* const match = std::ranges::find(kStageNames, field.String());
  if (match == kStageNames.end())
    field.Fail(fmt::format("one of {}", fmt::join(kStageNames, ", ")));
  return static_cast<DataflowStage>(match - kStageNames.begin());
}

int64_t ParseNestedBytes(const JsonField& field) {
  if (!field.json().is_array()) return field.Bytes();
  int64_t bytes = 0;
  for (const JsonField& element : field.Elements()) {
    bytes += ParseNestedBytes(element);
    if (bytes > kMostExactInteger)
      field.Complain("expected at most 2^53 bytes in all, found more");
  }
  return bytes;
}

std::vector<int32_t> ParseInputs(const JsonField& field,
                                 const NodeIndex& before) {
  std::vector<int32_t> inputs;
  std::unordered_set<int32_t> seen_inputs;
  for (const JsonField& element : field.Elements()) {
    const auto input = before.find(element.String());
    if (input == before.end()) element.Fail("the name of an earlier node");
    if (seen_inputs.insert(input->second).second)
      inputs.push_back(input->second);
  }
  return inputs;
}

DataflowNode ParseNode(const JsonField& field, const NodeIndex& before) {
  DataflowNode node;
  const JsonField name = field.Get("name");
  node.name = name.String();
  if (before.contains(node.name)) name.Fail("a name that no other node has");
  node.stage = ParseStage(field.Get("stage"));
  node.saved = Optional(field, "saved", [](const JsonField& f) {
                 return f.Bool();
               }).value_or(false);
  node.bytes = ParseNestedBytes(field.Get("bytes"));
  node.inputs = ParseInputs(field.Get("inputs"), before);
  node.flops = Optional(field, "flops", [](const JsonField& f) {
    return f.Int(0, kMostExactInteger);
  });
  return node;
}

std::vector<DataflowNode> ParseNodes(const JsonField& field) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<DataflowNode> nodes;
  nodes.reserve(elements.size());
  NodeIndex index;
  int64_t bytes = 0;
  int64_t flops = 0;
  for (const JsonField& element : elements) {
    nodes.push_back(ParseNode(element, index));
    const DataflowNode& node = nodes.back();
    index.emplace(node.name, static_cast<int32_t>(index.size()));
    bytes += node.bytes;
    flops += node.flops.value_or(0);
    if (std::max(bytes, flops) > kMostTotalBytes)
      field.Complain(fmt::format("expected at most 2^62 {} in all, found more",
                                 bytes > kMostTotalBytes ? "bytes" : "FLOPs"));
  }
  return nodes;
}

nlohmann::ordered_json NodeJson(const DataflowNode& node,
                                std::span<const DataflowNode> nodes) {
  nlohmann::ordered_json json = {{"name", node.name},
                                 {"stage", ToString(node.stage)},
                                 {"saved", node.saved},
                                 {"bytes", node.bytes}};
  json["inputs"] = nlohmann::ordered_json::array();
  for (const int32_t input : node.inputs)
    json["inputs"].push_back(nodes[input].name);
  if (node.flops) json["flops"] = *node.flops;
  return json;
}

}  // namespace

std::string_view ToString(DataflowStage stage) {
  return kStageNames[static_cast<size_t>(stage)];
}

DataflowGraph ReadDataflowGraph(const std::filesystem::path& path) {
  return ParseDataflowGraph(ReadJsonText(path), path.string());
}

DataflowGraph ParseDataflowGraph(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, name);
  const JsonField root(document, std::string(name));
  RequireFormat(root, kFormat, kVersion);
  return {
      .model = Optional(root, "model", ParseModelInfo).value_or(ModelInfo()),
      .nodes = ParseNodes(root.Get("nodes"))};
}

std::string ToJson(const DataflowGraph& graph) {
  std::string nodes;
  for (const DataflowNode& node : graph.nodes) {
    nodes += nodes.empty() ? "\n" : ",\n";
    nodes += CompactText(NodeJson(node, graph.nodes));
  }
  return fmt::format(
      "{{\n\"format\":\"{}\",\n\"version\":{},\n\"model\":{},\n"
      "\"nodes\":[{}{}]\n}}\n",
      kFormat, kVersion, CompactText(ModelInfoJson(graph.model)), nodes,
      nodes.empty() ? "" : "\n");
}

}  // namespace acplan::graph
