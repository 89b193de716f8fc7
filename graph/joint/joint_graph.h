#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/model_info.h"

namespace acplan::graph {

// The forward and the backward pass that a compiler is about to split into two graphs, in
// the order in which they run: the file `acplan.graph`, version 1, which
// docs/file_formats.md describes. Views are left out: a node that reads a view reads its
// buffer.

// The memory of one allocation.
struct JointBuffer {
  std::string name;
  int64_t bytes = 0;
  bool may_keep = true;  // may be kept from forward to backward
  // For a buffer that no node makes: true if it arrives with the backward pass and stays
  // until its last read, false if it is there during the whole step.
  bool is_from_backward = false;
  bool may_move = true;  // may wait in the host's memory if it is kept

  bool operator==(const JointBuffer&) const = default;
};

enum class JointStage : uint8_t {
  kForward,  // a result of the forward pass needs it
  // Only backward needs it; it runs in the pass that needs its result first.
  kEither,
  kBackward,  // it needs inputs that arrive with the backward pass
};
std::string_view ToString(JointStage stage);  // "forward" ...

struct JointNode {
  std::string name;
  std::string op = {};
  JointStage stage = JointStage::kForward;
  double ms = 0;
  std::vector<int32_t> reads = {};  // buffers, each once
  std::vector<int32_t> makes = {};  // buffers
  // For stages forward and either: whether the node may run in the backward pass.
  bool may_run_again = true;
  int64_t scratch_bytes = 0;  // only while it runs
  // For stages forward and either: an earlier node, such as another run of the same code.
  // The i-th buffers that the two make are kept alike: both or neither.
  std::optional<int32_t> tied_to = {};

  bool operator==(const JointNode&) const = default;
};

struct JointGraph {
  ModelInfo model = {};
  int64_t held_bytes = 0;  // in addition to the buffers, during the whole step
  std::vector<JointBuffer> buffers = {};
  std::vector<JointNode> nodes = {};
  // The results of the two passes, which stay until the end of the step.
  std::vector<int32_t> forward_outputs = {};
  std::vector<int32_t> backward_outputs = {};

  bool operator==(const JointGraph&) const = default;
};

// Reads and validates a graph (.json or .json.gz). Throws InputError, one line with file,
// JSON path, actual and expected value, if
// - the text is no JSON, `format` is not "acplan.graph" or `version` not 1;
// - a field is missing, ill-typed or out of range; but model, held_bytes, keep, move, from,
//   op, again, scratch and tied_to may be missing;
// - two buffers or two nodes have the same name;
// - a buffer is made by two nodes, or read before it is made;
// - a buffer that arrives with the backward pass is made by a node, or read by a node of
//   stage forward or either;
// - a node of stage forward reads a buffer that a node of stage either or backward makes,
//   or a node of stage either reads one that a node of stage backward makes;
// - a pass returns a buffer that it neither makes nor has;
// - a node of stage forward or either makes more than 64 buffers;
// - a node is tied to something other than an earlier node of stage forward or either, or
//   to a node that is tied itself, that makes another number of buffers, or whose buffers
//   differ in whether they may be kept;
// - all buffers together have more than 2^53 bytes, or all nodes more than 10^15 ms.
//
// Unknown keys are ignored.
JointGraph ReadJointGraph(const std::filesystem::path& path);

// Parses a graph from text as ReadJointGraph does. Errors name `name` in place of a file.
JointGraph ParseJointGraph(std::string_view text, std::string_view name);

// Returns the text of the file; ParseJointGraph(ToJson(g)) == g for every valid g.
std::string ToJson(const JointGraph& graph);

}  // namespace acplan::graph
