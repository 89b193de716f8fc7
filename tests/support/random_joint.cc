#include "tests/support/random_joint.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace acplan::test_support {

using graph::JointBuffer;
using graph::JointGraph;
using graph::JointNode;
using graph::JointStage;

namespace {

class Maker {
 public:
  Maker(std::mt19937& random, const JointShape& shape)
      : random_(random), shape_(shape) {}

  JointGraph Make() {
    graph_.held_bytes = Whole(0, 3);
    for (int i = Whole(1, 2); i > 0; --i) forward_.push_back(AddBuffer());
    inputs_ = forward_.size();
    tangent_ = AddBuffer();
    graph_.buffers[tangent_].is_from_backward = true;
    for (int i = 0; i < shape_.forward; ++i) AddForward();
    if (Chance(4)) graph_.forward_outputs.push_back(forward_[0]);
    for (size_t i = inputs_; i < forward_.size(); ++i)
      if (Chance(6)) graph_.forward_outputs.push_back(forward_[i]);
    backward_ = {tangent_};
    for (int i = 0; i < shape_.backward; ++i) AddBackward(i);
    for (const int32_t b : backward_)
      if (Chance(3)) graph_.backward_outputs.push_back(b);
    for (size_t i = inputs_; i < all_.size(); ++i)
      if (Chance(15)) AddOnce(all_[i], graph_.backward_outputs);
    return std::move(graph_);
  }

 private:
  int Whole(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  bool Chance(int most) { return Whole(1, most) == 1; }

  int32_t AddBuffer() {
    const auto b = static_cast<int32_t>(graph_.buffers.size());
    graph_.buffers.push_back(
        {.name = "b" + std::to_string(b), .bytes = Whole(0, 8)});
    return b;
  }

  static void AddOnce(int32_t b, std::vector<int32_t>& to) {
    if (std::ranges::find(to, b) == to.end()) to.push_back(b);
  }

  // Returns one of them, mostly a recent one.
  int32_t OneOf(const std::vector<int32_t>& from) {
    const int count = static_cast<int>(from.size());
    const int back = std::min(Whole(1, count), Whole(1, count));
    return from[count - back];
  }

  void AddForward() {
    const bool is_either = Chance(6);
    if (all_.empty()) all_ = forward_;
    JointNode node{
        .name = "f" + std::to_string(graph_.nodes.size()),
        .stage = is_either ? JointStage::kEither : JointStage::kForward,
        .ms = Chance(4) ? 0.0 : Whole(1, 9),
        .scratch_bytes = Chance(5) ? Whole(1, 6) : 0};
    for (int i = Whole(1, 3); i > 0; --i)
      AddOnce(OneOf(is_either ? all_ : forward_), node.reads);
    for (int i = Chance(4) ? Whole(0, 3) : 1; i > 0; --i) {
      const int32_t b = AddBuffer();
      node.makes.push_back(b);
      all_.push_back(b);
      if (!is_either) forward_.push_back(b);
      if (shape_.has_rules && Chance(9)) graph_.buffers[b].may_keep = false;
    }
    if (shape_.has_rules && Chance(9)) node.may_run_again = false;
    graph_.nodes.push_back(std::move(node));
  }

  void AddBackward(int i) {
    JointNode node{.name = "g" + std::to_string(graph_.nodes.size()),
                   .stage = JointStage::kBackward,
                   .ms = 1,
                   .scratch_bytes = Chance(5) ? Whole(1, 6) : 0};
    AddOnce(OneOf(backward_), node.reads);
    const int count = static_cast<int>(all_.size());
    const int last = count - 1 - i * count / shape_.backward;
    for (int reads = Whole(0, 3); reads > 0; --reads) {
      const int at = Chance(4) ? Whole(0, count - 1)
                               : std::clamp(last + Whole(-1, 1), 0, count - 1);
      AddOnce(all_[at], node.reads);
    }
    for (int makes = Chance(4) ? Whole(0, 2) : 1; makes > 0; --makes) {
      const int32_t b = AddBuffer();
      node.makes.push_back(b);
      backward_.push_back(b);
    }
    graph_.nodes.push_back(std::move(node));
  }

  std::mt19937& random_;
  const JointShape shape_;
  JointGraph graph_;
  size_t inputs_ = 0;
  int32_t tangent_ = 0;
  std::vector<int32_t> forward_;   // inputs and results of nodes of stage
                                   // forward
  std::vector<int32_t> all_;       // those and results of stage either
  std::vector<int32_t> backward_;  // results of backward, and the tangent
};

}  // namespace

namespace {

// Repeats a graph.
class Repeater {
 public:
  Repeater(const JointGraph& graph, int32_t handed_on)
      : graph_(graph), handed_on_(handed_on), maker_(graph.buffers.size(), -1) {
    step_.held_bytes = graph.held_bytes;
    for (int32_t n = 0; n < std::ssize(graph.nodes); ++n)
      for (const int32_t b : graph.nodes[n].makes) maker_[b] = n;
  }

  JointGraph Repeat(int runs) {
    for (int r = 0; r < runs; ++r) AddForward(r);
    for (int r = runs - 1; r >= 0; --r) AddBackward(r);
    return std::move(step_);
  }

 private:
  static void AddOnce(int32_t b, std::vector<int32_t>& to) {
    if (std::ranges::find(to, b) == to.end()) to.push_back(b);
  }

  void AddForward(int run) {
    buffers_of_run_.emplace_back();
    for (int32_t b = 0; b < std::ssize(graph_.buffers); ++b) {
      const bool is_shared = maker_[b] < 0 && b > 0;
      if (run > 0 && (is_shared || b == 0)) {
        buffers_of_run_.back().push_back(b == 0 ? handed_buffer_
                                                : buffers_of_run_[0][b]);
        continue;
      }
      buffers_of_run_.back().push_back(Add(graph_.buffers[b], run));
    }
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n)
      if (graph_.nodes[n].stage != JointStage::kBackward) AddNode(n, run);
    // Other results in every other run.
    for (const int32_t b : graph_.forward_outputs)
      if (b > 0 && (b + run) % 2 == 0)
        AddOnce(buffers_of_run_.back()[b], step_.forward_outputs);
    // A node of its own makes the buffer that a run hands on, and never a
    // second time.
    JointBuffer handed_buffer = graph_.buffers[0];
    handed_buffer.name += " handed on";
    handed_buffer_ = Add(handed_buffer, run);
    step_.nodes.push_back({.name = "hand on " + std::to_string(run),
                           .reads = {buffers_of_run_.back()[handed_on_]},
                           .makes = {handed_buffer_},
                           .may_run_again = false});
  }

  void AddBackward(int run) {
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n)
      if (graph_.nodes[n].stage == JointStage::kBackward) AddNode(n, run);
    for (const int32_t b : graph_.backward_outputs)
      AddOnce(buffers_of_run_[run][b], step_.backward_outputs);
  }

  int32_t Add(JointBuffer buffer, int run) {
    buffer.name += "." + std::to_string(run);
    step_.buffers.push_back(std::move(buffer));
    return static_cast<int32_t>(step_.buffers.size()) - 1;
  }

  void AddNode(int32_t n, int run) {
    JointNode node = graph_.nodes[n];
    node.name += "." + std::to_string(run);
    for (int32_t& b : node.reads) b = buffers_of_run_[run][b];
    for (int32_t& b : node.makes) b = buffers_of_run_[run][b];
    if (node.stage != JointStage::kBackward) {
      if (run == 0) first_.push_back(static_cast<int32_t>(step_.nodes.size()));
      if (run > 0) node.tied_to = first_[n];
    }
    step_.nodes.push_back(std::move(node));
  }

  const JointGraph& graph_;
  const int32_t handed_on_;     // buffer
  std::vector<int32_t> maker_;  // by buffer
  JointGraph step_;
  std::vector<std::vector<int32_t>> buffers_of_run_;  // by run and buffer
  std::vector<int32_t> first_;  // by node of forward: that of the first run
  int32_t handed_buffer_ = 0;
};

}  // namespace

JointGraph RandomRuns(std::mt19937& random, const JointShape& shape, int runs) {
  const JointGraph graph = RandomJoint(random, shape);
  std::vector<int32_t> made_buffers = {0};
  for (const JointNode& node : graph.nodes)
    if (node.stage == JointStage::kForward)
      made_buffers.insert(made_buffers.end(), node.makes.begin(),
                          node.makes.end());
  const int32_t handed_on = made_buffers[random() % made_buffers.size()];
  return Repeater(graph, handed_on).Repeat(runs);
}

JointGraph RandomJoint(std::mt19937& random, const JointShape& shape) {
  return Maker(random, shape).Make();
}

}  // namespace acplan::test_support
