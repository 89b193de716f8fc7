#include "graph/schedule/schedule_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

constexpr int32_t kHeld = -1;  // no value: an input
constexpr int32_t kUnmade = -2;

class Converter {
 public:
  explicit Converter(const JointGraph& joint)
      : joint_(joint), value_of_(joint.buffers.size(), kHeld) {}

  ScheduleGraph Convert() {
    if (joint_.nodes.empty())
      throw InputError(
          "nodes: expected at least one node, found an array of 0 entries");
    result_.name = joint_.model.name;
    result_.time_unit = "ms";
    result_.held_bytes = joint_.held_bytes;
    SortBuffers();
    const auto backward = std::ranges::find(joint_.nodes, JointStage::kBackward,
                                            &JointNode::stage);
    for (auto node = joint_.nodes.begin(); node != joint_.nodes.end(); ++node) {
      if (node == backward) AddBegin();
      Add(*node);
    }
    for (const auto* outputs :
         {&joint_.forward_outputs, &joint_.backward_outputs})
      for (const int32_t b : *outputs)
        if (value_of_[b] >= 0) result_.values[value_of_[b]].is_returned = true;
    return std::move(result_);
  }

 private:
  // Counts inputs as held and finds the buffers that nodes make.
  void SortBuffers() {
    for (const JointNode& node : joint_.nodes)
      for (const int32_t b : node.makes) value_of_[b] = kUnmade;
    for (size_t b = 0; b < joint_.buffers.size(); ++b) {
      const JointBuffer& buffer = joint_.buffers[b];
      if (!buffer.may_keep && value_of_[b] == kUnmade)
        throw InputError(fmt::format(
            "buffers[{}].keep: expected true, of any schedule, found false",
            b));
      if (buffer.is_from_backward) {
        begin_.push_back(static_cast<int32_t>(b));
      } else if (value_of_[b] == kHeld) {
        result_.held_bytes += buffer.bytes;
      }
    }
  }

  void Make(int32_t buffer) {
    value_of_[buffer] = static_cast<int32_t>(result_.values.size());
    result_.nodes.back().makes.push_back(value_of_[buffer]);
    result_.values.push_back(
        {.name = joint_.buffers[buffer].name,
         .bytes = joint_.buffers[buffer].bytes,
         .maker = static_cast<int32_t>(result_.nodes.size()) - 1});
  }

  // Adds the inputs that arrive with the backward pass.
  void AddBegin() {
    if (begin_.empty()) return;
    result_.nodes.push_back(
        {.name = "(backward begins)", .may_run_again = false});
    for (const int32_t b : begin_) Make(b);
  }

  void Add(const JointNode& node) {
    result_.nodes.push_back({.name = node.name,
                             .ms = node.ms,
                             .may_run_again = node.may_run_again,
                             .scratch_bytes = node.scratch_bytes});
    for (const int32_t b : node.reads)
      if (value_of_[b] >= 0) result_.nodes.back().reads.push_back(value_of_[b]);
    for (const int32_t b : node.makes) Make(b);
  }

  const JointGraph& joint_;
  std::vector<int32_t> value_of_;  // indexed by buffer
  std::vector<int32_t> begin_;     // buffers that arrive with the backward pass
  ScheduleGraph result_;
};

}  // namespace

ScheduleGraph ToScheduleGraph(const JointGraph& joint) {
  return Converter(joint).Convert();
}

}  // namespace acplan::graph
