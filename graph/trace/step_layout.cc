#include "graph/trace/step_layout.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "graph/base/flag.h"

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
    layout_.step_of_operator.assign(end_, kNone);
    auto request = requests.begin();
    for (now_ = 0; now_ <= end_; ++now_) {
      layout_.step_at_time.push_back(StepNow());
      for (; request != requests.end() && request->first == now_; ++request) {
        RunFrameAgain(request->second);
      }
      if (now_ < end_) RunOnce(OperatorAt(now_));
    }
    return std::move(layout_);
  }

 private:
  // Returns the step before which what happens at the current time has happened. After
  // an operator that has run early it has happened early, too.
  StepId StepNow() const {
    if (early_.empty() || now_ == 0) return layout_.EndOfSteps();
    const OperatorId before = Previous(OperatorAt(now_));
    return early_[before] ? Next(layout_.step_of_operator[before])
                          : layout_.EndOfSteps();
  }

  // Runs an operator of the trace's own, unless it has run early.
  void RunOnce(OperatorId op) {
    if (layout_.step_of_operator[op] != kNone) return;
    layout_.step_of_operator[op] = layout_.EndOfSteps();
    layout_.steps.push_back({.op = op});
  }

  // Gathers, while a frame runs again, the parameters of calls inside it that begin
  // with an operator, if they are not gathered yet.
  void GatherBefore(OperatorId op, const Frame& frame) {
    const Trace& trace = *prepared_.trace;
    const auto start_of = [&](CallId c) { return trace.calls[c].start; };
    const auto [first, last] = std::ranges::equal_range(
        prepared_.gathered_calls, StartOf(op), {}, start_of);
    for (auto c = first; c != last; ++c) {
      const TraceCall& call = trace.calls[*c];
      const bool is_inside = *c > frame.call_id && call.end <= frame.call->end;
      if (!is_inside || call.gather_begin < now_) continue;
      if (early_.empty()) early_.assign(end_, false);
      for (const OperatorId k :
           OperatorsIn(call.gather_begin, call.gather_end)) {
        early_[k] = true;
        RunOnce(k);
      }
    }
  }

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
      GatherBefore(op, frame);
      cast_before(op);
      if (frame.RunsAgain(op)) RunAgain(frame, op);
    }
    layout_.rerun_steps.push_back(layout_.EndOfSteps());
    if (frame.rerun_stop < frame.call->end) {
      GatherBefore(OperatorAt(frame.rerun_stop), frame);
    }
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
  Time now_ = 0;
  // The operators that have run before their time, if any have.
  IndexedVector<OperatorId, Flag> early_ = {};
  StepLayout layout_;
};

}  // namespace

StepLayout LayOutSteps(const PreparedTrace& prepared,
                       const IndexedVector<FrameId, Frame>& frames) {
  return LayoutBuilder(prepared, frames).Build();
}

}  // namespace acplan::graph
