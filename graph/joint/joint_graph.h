#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/model_info.h"

namespace acplan::graph {

// The forward and the backward pass that a compiler is about to make two graphs
// of, in the order in which they run: the file `acplan.graph`, version 1, which
// docs/file_formats.md describes. Views are left out: who reads a view reads its
// buffer.

// Memory of one allocation.
struct JointBuffer {
  std::string name;
  int64_t bytes = 0;
  bool may_keep = true;  // from forward to backward
  // Of what no node makes: it comes with backward, and is there until its last
  // read; else it is there during the whole step.
  bool is_from_backward = false;

  bool operator==(const JointBuffer&) const = default;
};

enum class JointStage : uint8_t {
  kForward,  // what the forward pass returns needs it
  kEither,  // only backward needs it; it runs where what it makes is wanted first
  kBackward,  // it needs what comes with backward
};
std::string_view ToString(JointStage stage);  // "forward" ...

struct JointNode {
  std::string name;
  std::string op = {};
  JointStage stage = JointStage::kForward;
  double ms = 0;
  std::vector<int32_t> reads = {};  // buffers, each once
  std::vector<int32_t> makes = {};  // buffers
  // Of stages forward and either: it may run in the backward pass.
  bool may_run_again = true;
  int64_t scratch_bytes = 0;  // only while it runs
  // Of stages forward and either: an earlier node, as of another run of the same code.
  // What both make, in order, is kept of both or of neither.
  std::optional<int32_t> tied_to = {};

  bool operator==(const JointNode&) const = default;
};

struct JointGraph {
  ModelInfo model = {};
  int64_t held_bytes = 0;  // beside the buffers, during the whole step
  std::vector<JointBuffer> buffers = {};
  std::vector<JointNode> nodes = {};
  // What the two passes return, which is there until the end of the step.
  std::vector<int32_t> forward_outputs = {};
  std::vector<int32_t> backward_outputs = {};

  bool operator==(const JointGraph&) const = default;
};

// Reads and validates a graph (.json or .json.gz). Throws InputError, one line
// with file, JSON path, what was found and what was expected, where
// - the text is no JSON, `format` is not "acplan.graph" or `version` not 1;
// - a field is missing, ill-typed or out of range; but model, held_bytes, keep,
//   from, op, again, scratch and tied_to may be missing;
// - two buffers or two nodes have the same name;
// - a buffer is made by two nodes, or read before it is made; one that comes with
//   backward is made by a node or read by one that does not belong there;
// - a node of stage forward reads what one of stage either or backward makes, one of
//   stage either what one of backward makes;
// - a pass returns what it does not make or have;
// - a node of stage forward or either makes more than 64 buffers;
// - a node is tied to what is no earlier node of stage forward or either, or to one that
//   is tied itself or makes another number of buffers, or others that may be kept;
// - all buffers are more than 2^53 bytes, or all nodes more than 10^15 ms. Unknown
//   keys are ignored.
JointGraph ReadJointGraph(const std::filesystem::path& path);

// As ReadJointGraph, from text; `name` stands for the file in errors.
JointGraph ParseJointGraph(std::string_view text, std::string_view name);

// The text of the file; ParseJointGraph(ToJson(g)) == g for every valid g.
std::string ToJson(const JointGraph& graph);

}  // namespace acplan::graph
