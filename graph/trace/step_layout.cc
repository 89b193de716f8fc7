#include "graph/trace/step_layout.h"

#include <algorithm>
#include <utility>

namespace acplan::graph {
namespace {

class LayoutBuilder {
 public:
  LayoutBuilder(const PreparedTrace& prepared, const std::vector<Frame>& frames)
      : prepared_(prepared),
        frames_(frames),
        count_(static_cast<int32_t>(prepared.runtime_ms.size())) {
    layout_.reruns.resize(frames.size());
  }

  StepLayout Build() && {
    // Where several frames run again at one time, the last call comes first: it
    // is the one that backward meets first.
    std::vector<std::pair<int32_t, int32_t>> requests;
    size_t steps = count_;
    for (int32_t f = 0; f < std::ssize(frames_); ++f) {
      const Frame& frame = frames_[f];
      if (frame.rerun_time > count_) continue;
      requests.emplace_back(frame.rerun_time, -f);
      steps += frame.rerun_stop - frame.call->start + frame.recasts.size();
    }
    std::ranges::sort(requests);
    layout_.steps.reserve(steps);
    layout_.step_at_time.reserve(count_ + 1);
    layout_.step_of_operator.reserve(count_);
    auto request = requests.begin();
    for (int32_t t = 0; t <= count_; ++t) {
      layout_.step_at_time.push_back(layout_.StepCount());
      for (; request != requests.end() && request->first == t; ++request) {
        RunFrameAgain(-request->second);
      }
      if (t == count_) break;
      layout_.step_of_operator.push_back(layout_.StepCount());
      layout_.steps.push_back({.op = t});
    }
    return std::move(layout_);
  }

 private:
  // A frame whose arguments are saves of the one around it needs that to run
  // first, which makes them.
  void RunFrameAgain(int32_t f) {
    if (layout_.reruns[f].is_laid_out) return;
    const Frame& frame = frames_[f];
    if (frame.IsSavedByParent()) RunFrameAgain(frame.parent);
    StepLayout::Rerun& rerun = layout_.reruns[f];
    rerun.is_laid_out = true;
    rerun.first_place = layout_.rerun_steps.size();
    rerun.recast_steps.reserve(frame.recasts.size());
    auto recast = frame.recasts.begin();
    const auto cast_before = [&](int32_t op) {
      for (; recast != frame.recasts.end() && recast->user == op; ++recast) {
        rerun.recast_steps.push_back(layout_.StepCount());
        RunAgain(frame, recast->op);
      }
    };
    for (int32_t op = frame.call->start; op < frame.rerun_stop; ++op) {
      layout_.rerun_steps.push_back(layout_.StepCount());
      cast_before(op);
      if (frame.RunsAgain(op)) RunAgain(frame, op);
    }
    layout_.rerun_steps.push_back(layout_.StepCount());
    cast_before(frame.rerun_stop);
    rerun.end = layout_.StepCount();
  }

  void RunAgain(const Frame& frame, int32_t op) {
    layout_.steps.push_back({.op = op, .redone = frame.call_index});
    layout_.recompute_ms += prepared_.runtime_ms[op];
  }

  const PreparedTrace& prepared_;
  const std::vector<Frame>& frames_;
  int32_t count_;
  StepLayout layout_;
};

}  // namespace

StepLayout LayOutSteps(const PreparedTrace& prepared,
                       const std::vector<Frame>& frames) {
  return LayoutBuilder(prepared, frames).Build();
}

}  // namespace acplan::graph
