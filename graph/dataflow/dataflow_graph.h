#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/model_info.h"

namespace acplan::graph {

// The forward and the backward pass of a model as one graph of values: the file
// `acplan.dataflow`, version 1. docs/file_formats.md describes the file.

enum class DataflowStage : uint8_t { kPlaceholder, kForward, kLoss, kBackward };
inline constexpr size_t kDataflowStages = 4;
std::string_view ToString(DataflowStage stage);  // "placeholder" ...

struct DataflowNode {
  std::string name;
  DataflowStage stage = DataflowStage::kForward;
  bool saved = false;                 // kept for the backward pass
  int64_t bytes = 0;                  // the sum over its outputs
  std::vector<int32_t> inputs = {};   // earlier nodes, each once
  std::optional<int64_t> flops = {};  // to compute it

  bool operator==(const DataflowNode&) const = default;
};

struct DataflowGraph {
  ModelInfo model;
  std::vector<DataflowNode> nodes;  // in the order in which they run

  bool operator==(const DataflowGraph&) const = default;
};

// Reads and validates a graph (.json or .json.gz); `bytes` may be nested, and an input that
// a node names repeatedly counts once. Throws InputError, one line with file, JSON path,
// actual and expected value, if
// - the text is no JSON, `format` is not "acplan.dataflow" or `version` not 1;
// - a field, such as the stage of a node, is missing, ill-typed or out of range;
// - two nodes have the same name, or an input is no earlier node;
// - all nodes together have more than 2^62 bytes or 2^62 FLOPs.
//
// Unknown keys are ignored. model and the keys inside it, saved and flops may be missing,
// but not ill-typed.
DataflowGraph ReadDataflowGraph(const std::filesystem::path& path);

// Parses a graph from text as ReadDataflowGraph does. Errors name `name` in place of a
// file.
DataflowGraph ParseDataflowGraph(std::string_view text, std::string_view name);

// Returns the text of the file; ParseDataflowGraph(ToJson(g)) == g for every valid g.
std::string ToJson(const DataflowGraph& graph);

}  // namespace acplan::graph
