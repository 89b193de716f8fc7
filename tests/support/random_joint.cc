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
  bool Chance(int of) { return Whole(1, of) == 1; }

  int32_t AddBuffer() {
    const auto b = static_cast<int32_t>(graph_.buffers.size());
    graph_.buffers.push_back(
        {.name = "b" + std::to_string(b), .bytes = Whole(0, 8)});
    return b;
  }

  static void AddOnce(int32_t b, std::vector<int32_t>& to) {
    if (std::ranges::find(to, b) == to.end()) to.push_back(b);
  }

  // Mostly a recent one.
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
  std::vector<int32_t> forward_;  // inputs and what nodes of stage forward make
  std::vector<int32_t> all_;      // those of stage either, too
  std::vector<int32_t> backward_;  // what backward makes, and the tangent
};

}  // namespace

JointGraph RandomJoint(std::mt19937& random, const JointShape& shape) {
  return Maker(random, shape).Make();
}

}  // namespace acplan::test_support
