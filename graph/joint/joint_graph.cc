#include "graph/joint/joint_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_set>
#include <utility>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/profile/model_json.h"

namespace acplan::graph {
namespace {

constexpr std::string_view kFormat = "acplan.graph";
constexpr int kVersion = 1;
constexpr double kMostMs = 1e15;
// Indexed by JointStage.
constexpr std::array<std::string_view, 3> kStageNames = {"forward", "either",
                                                         "backward"};
// Indexed by JointBuffer::is_from_backward.
constexpr std::array<std::string_view, 2> kOrigins = {"forward", "backward"};

size_t ParseOneOf(const JsonField& field,
                  std::span<const std::string_view> names) {
  const auto match = std::ranges::find(names, field.String());
  if (match == names.end())
    field.Fail(fmt::format("one of {}", fmt::join(names, ", ")));
  return static_cast<size_t>(match - names.begin());
}

bool OptionalBool(const JsonField& field, std::string_view key,
                  bool otherwise) {
  return Optional(field, key, [](const JsonField& f) { return f.Bool(); })
      .value_or(otherwise);
}

int64_t OptionalBytes(const JsonField& field, std::string_view key) {
  return Optional(field, key, [](const JsonField& f) { return f.Bytes(); })
      .value_or(0);
}

std::string ParseNewName(const JsonField& field,
                         std::unordered_set<std::string>& seen_names) {
  std::string name = field.String();
  if (name.empty()) field.Fail("a name");
  if (!seen_names.insert(name).second)
    field.Fail("a name that no other one has");
  return name;
}

std::vector<JointBuffer> ParseBuffers(const JsonField& field) {
  std::vector<JointBuffer> buffers;
  std::unordered_set<std::string> seen_names;
  int64_t bytes = 0;
  for (const JsonField& element : field.Elements()) {
    JointBuffer buffer{.name = ParseNewName(element.Get("name"), seen_names),
                       .bytes = element.Get("bytes").Bytes(),
                       .may_keep = OptionalBool(element, "keep", true)};
    buffer.may_move = OptionalBool(element, "move", true);
    if (element.Has("from"))
      buffer.is_from_backward = ParseOneOf(element.Get("from"), kOrigins) == 1;
    bytes += buffer.bytes;
    if (bytes > kMostExactInteger)
      field.Complain("expected at most 2^53 bytes in all, found more");
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::vector<int32_t> ParseBufferIndices(const JsonField& field,
                                        size_t buffers) {
  std::vector<int32_t> indices;
  std::unordered_set<int32_t> seen_indices;
  for (const JsonField& element : field.Elements()) {
    const auto index =
        static_cast<int32_t>(element.Int(0, static_cast<int64_t>(buffers) - 1));
    if (!seen_indices.insert(index).second) element.Fail("each buffer once");
    indices.push_back(index);
  }
  return indices;
}

JointNode ParseNode(const JsonField& field, size_t buffers,
                    std::unordered_set<std::string>& seen_names) {
  return {
      .name = ParseNewName(field.Get("name"), seen_names),
      .op = Optional(field, "op", [](const JsonField& f) { return f.String(); })
                .value_or(""),
      .stage =
          static_cast<JointStage>(ParseOneOf(field.Get("stage"), kStageNames)),
      .ms = field.Get("ms").NonNegativeNumber(),
      .reads = ParseBufferIndices(field.Get("reads"), buffers),
      .makes = ParseBufferIndices(field.Get("makes"), buffers),
      .may_run_again = OptionalBool(field, "again", true),
      .scratch_bytes = OptionalBytes(field, "scratch")};
}

// Parses and checks the node that `node` is tied to, if any.
void ParseTie(const JsonField& field, const JointGraph& graph,
              JointNode& node) {
  if (!field.Has("tied_to")) return;
  const JsonField tie = field.Get("tied_to");
  if (node.stage == JointStage::kBackward)
    tie.Complain("expected none of a node of stage backward");
  if (graph.nodes.empty()) tie.Fail("an earlier node");
  const auto place = static_cast<int32_t>(
      tie.Int(0, static_cast<int64_t>(graph.nodes.size()) - 1));
  const JointNode& other = graph.nodes[static_cast<size_t>(place)];
  if (other.stage == JointStage::kBackward)
    tie.Fail("a node that is not of stage backward");
  if (other.tied_to) tie.Fail("a node that is not tied itself");
  const auto may_keep = [&graph](int32_t b) {
    return graph.buffers[static_cast<size_t>(b)].may_keep;
  };
  if (!std::ranges::equal(node.makes, other.makes, {}, may_keep, may_keep))
    tie.Fail("a node that makes as many buffers, which may be kept alike");
  node.tied_to = place;
}

// The most buffers that a node of stage forward or either may make, since plans are sets of
// such buffers.
constexpr size_t kMostMakes = 64;

// The buffers of a graph and the stages of their makers, for the nodes that were read so
// far.
class Makers {
 public:
  explicit Makers(const std::vector<JointBuffer>& buffers)
      : buffers_(buffers), stages_(buffers.size(), JointStage::kForward) {
    is_made_.resize(buffers.size(), 0);
    for (size_t b = 0; b < buffers.size(); ++b)
      if (buffers[b].is_from_backward) stages_[b] = JointStage::kBackward;
  }

  // Records the buffers that some node makes; the others are inputs.
  void SetOutputs(const JsonField& nodes) {
    is_output_.assign(buffers_.size(), 0);
    for (const JsonField& node : nodes.Elements())
      for (const int32_t b :
           ParseBufferIndices(node.Get("makes"), buffers_.size()))
        is_output_[static_cast<size_t>(b)] = 1;
  }

  void Add(const JsonField& field, const JointNode& node) {
    const std::vector<JsonField> reads = field.Get("reads").Elements();
    for (size_t i = 0; i < node.reads.size(); ++i) {
      const auto b = static_cast<size_t>(node.reads[i]);
      if (is_output_[b] && !is_made_[b]) reads[i].Fail("a buffer made before");
      if (stages_[b] > node.stage)
        reads[i].Fail(fmt::format("a buffer that a node of stage {} may read",
                                  ToString(node.stage)));
    }
    const std::vector<JsonField> makes = field.Get("makes").Elements();
    if (node.stage != JointStage::kBackward && makes.size() > kMostMakes)
      field.Get("makes").Complain("expected at most 64 buffers, found more");
    for (size_t i = 0; i < node.makes.size(); ++i) {
      const auto b = static_cast<size_t>(node.makes[i]);
      if (is_made_[b]) makes[i].Fail("a buffer that no other node makes");
      if (buffers_[b].is_from_backward)
        makes[i].Fail("a buffer that does not come with backward");
      is_made_[b] = 1;
      stages_[b] = node.stage;
    }
  }

  // Parses the buffers that a pass returns. `last` is the pass's last stage.
  std::vector<int32_t> Outputs(const JsonField& field, JointStage last) const {
    std::vector<int32_t> outputs = ParseBufferIndices(field, buffers_.size());
    const std::vector<JsonField> elements = field.Elements();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (stages_[static_cast<size_t>(outputs[i])] > last)
        elements[i].Fail("a buffer that the pass makes or is given");
    }
    return outputs;
  }

 private:
  const std::vector<JointBuffer>& buffers_;
  std::vector<JointStage> stages_;
  std::vector<char> is_made_;
  std::vector<char> is_output_;
};

nlohmann::ordered_json BufferJson(const JointBuffer& buffer) {
  nlohmann::ordered_json json = {{"name", buffer.name},
                                 {"bytes", buffer.bytes}};
  if (!buffer.may_keep) json["keep"] = false;
  if (!buffer.may_move) json["move"] = false;
  if (buffer.is_from_backward) json["from"] = kOrigins[1];
  return json;
}

nlohmann::ordered_json NodeJson(const JointNode& node) {
  nlohmann::ordered_json json = {{"name", node.name}};
  if (!node.op.empty()) json["op"] = node.op;
  json["stage"] = ToString(node.stage);
  json["ms"] = node.ms;
  json["reads"] = node.reads;
  json["makes"] = node.makes;
  if (!node.may_run_again) json["again"] = false;
  if (node.scratch_bytes > 0) json["scratch"] = node.scratch_bytes;
  if (node.tied_to) json["tied_to"] = *node.tied_to;
  return json;
}

template <typename T, typename ToElement>
std::string Lines(const std::vector<T>& values, ToElement to_element) {
  std::string text;
  for (const T& value : values) {
    text += text.empty() ? "\n" : ",\n";
    text += CompactText(to_element(value));
  }
  return text + (text.empty() ? "" : "\n");
}

}  // namespace

std::string_view ToString(JointStage stage) {
  return kStageNames[static_cast<size_t>(stage)];
}

JointGraph ReadJointGraph(const std::filesystem::path& path) {
  return ParseJointGraph(ReadJsonText(path), path.string());
}

JointGraph ParseJointGraph(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, name);
  const JsonField root(document, std::string(name));
  RequireFormat(root, kFormat, kVersion);
  JointGraph graph{
      .model = Optional(root, "model", ParseModelInfo).value_or(ModelInfo()),
      .held_bytes = OptionalBytes(root, "held_bytes"),
      .buffers = ParseBuffers(root.Get("buffers"))};
  const JsonField nodes = root.Get("nodes");
  Makers makers(graph.buffers);
  makers.SetOutputs(nodes);
  std::unordered_set<std::string> seen_names;
  double ms = 0;
  for (const JsonField& element : nodes.Elements()) {
    JointNode node = ParseNode(element, graph.buffers.size(), seen_names);
    makers.Add(element, node);
    ParseTie(element, graph, node);
    ms += node.ms;
    graph.nodes.push_back(std::move(node));
    if (ms > kMostMs)
      nodes.Complain("expected at most 10^15 ms in all, found more");
  }
  graph.forward_outputs =
      makers.Outputs(root.Get("forward_outputs"), JointStage::kForward);
  graph.backward_outputs =
      makers.Outputs(root.Get("backward_outputs"), JointStage::kBackward);
  return graph;
}

std::string ToJson(const JointGraph& graph) {
  return fmt::format(
      "{{\n\"format\":\"{}\",\n\"version\":{},\n\"model\":{},\n"
      "\"held_bytes\":{},\n\"buffers\":[{}],\n\"nodes\":[{}],\n"
      "\"forward_outputs\":[{}],\n\"backward_outputs\":[{}]\n}}\n",
      kFormat, kVersion, CompactText(ModelInfoJson(graph.model)),
      graph.held_bytes, Lines(graph.buffers, BufferJson),
      Lines(graph.nodes, NodeJson), fmt::join(graph.forward_outputs, ","),
      fmt::join(graph.backward_outputs, ","));
}

}  // namespace acplan::graph
