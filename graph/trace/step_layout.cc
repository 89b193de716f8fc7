#include "graph/trace/step_layout.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace acplan::graph {
namespace {

class LayoutBuilder {
 public:
  LayoutBuilder(const PreparedTrace& prepared,
                const IndexedVector<FrameId, Frame>& frames)
      : prepared_(prepared),
        frames_(frames),
        end_(static_cast<Time>(prepared.runtime_ms.size())) {
    layout_.reruns.resize(frames.size());
  }

  StepLayout Build() && {
    // Where several frames run again at one time, the last call comes first: it
    // is the one that backward meets first. A frame that does not hold an argument waits for
    // those that make it again.
    std::vector<std::pair<Time, FrameId>> requests;
    size_t steps = end_;
    for (const FrameId f : std::views::reverse(frames_.ids())) {
      const Frame& frame = frames_[f];
      if (frame.rerun_time > end_) continue;
      requests.emplace_back(frame.rerun_time, f);
      steps += frame.rerun_stop - frame.call->start + frame.recasts.size();
    }
    std::ranges::stable_sort(requests, [&](const auto& one, const auto& other) {
      if (one.first != other.first) return one.first < other.first;
      return frames_[one.second].HoldsArguments() &&
             !frames_[other.second].HoldsArguments();
    });
    layout_.steps.reserve(steps);
    layout_.step_at_time.reserve(end_ + 1);
    layout_.step_of_operator.reserve(end_);
    auto request = requests.begin();
    for (Time t = 0; t <= end_; ++t) {
      layout_.step_at_time.push_back(layout_.EndOfSteps());
      for (; request != requests.end() && request->first == t; ++request) {
        RunFrameAgain(request->second);
      }
      if (t == end_) break;
      layout_.step_of_operator.push_back(layout_.EndOfSteps());
      layout_.steps.push_back({.op = OperatorAt(t)});
    }
    return std::move(layout_);
  }

 private:
  // A frame whose arguments are saves of the one around it needs that to run
  // first, which makes them.
  void RunFrameAgain(FrameId f) {
    if (layout_.reruns[f].is_laid_out) return;
    const Frame& frame = frames_[f];
    if (frame.IsSavedByParent()) RunFrameAgain(frame.parent);
    StepLayout::Rerun& rerun = layout_.reruns[f];
    rerun.is_laid_out = true;
    rerun.first_place = layout_.rerun_steps.size();
    rerun.recast_steps.reserve(frame.recasts.size());
    auto recast = frame.recasts.begin();
    const auto cast_before = [&](OperatorId op) {
      for (; recast != frame.recasts.end() && recast->user == op; ++recast) {
        rerun.recast_steps.push_back(layout_.EndOfSteps());
        RunAgain(frame, recast->op);
      }
    };
    for (const OperatorId op :
         OperatorsIn(frame.call->start, frame.rerun_stop)) {
      layout_.rerun_steps.push_back(layout_.EndOfSteps());
      cast_before(op);
      if (frame.RunsAgain(op)) RunAgain(frame, op);
    }
    layout_.rerun_steps.push_back(layout_.EndOfSteps());
    cast_before(OperatorAt(frame.rerun_stop));
    rerun.end = layout_.EndOfSteps();
  }

  void RunAgain(const Frame& frame, OperatorId op) {
    layout_.steps.push_back({.op = op, .redone = frame.call_id});
    layout_.recompute_ms += prepared_.runtime_ms[op];
  }

  const PreparedTrace& prepared_;
  const IndexedVector<FrameId, Frame>& frames_;
  Time end_;
  StepLayout layout_;
};

}  // namespace

StepLayout LayOutSteps(const PreparedTrace& prepared,
                       const IndexedVector<FrameId, Frame>& frames) {
  return LayoutBuilder(prepared, frames).Build();
}

}  // namespace acplan::graph
