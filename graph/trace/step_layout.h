#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"

namespace acplan::graph {

// The operators of a planned step in the order in which they run, its steps,
// and the way from the times of the trace to them.
//
// A time of the trace is between two operators, and what runs again then does
// so there: between two steps of the trace's own there may be many. Backward
// nodes let go of what they used before the next one asks for anything, so what
// ends at a time ends before what runs again then.
//
// A frame that runs again gathers the parameters of the calls inside it when it gets
// there (TraceCall::gather_begin); operators that did so later run early, and once.
struct StepLayout {
  // The steps of a frame that runs again, [.., end).
  struct Rerun {
    bool is_laid_out = false;  // otherwise the frame never runs again
    size_t first_place = 0;    // of its operators in rerun_steps
    StepId end = {};
    std::vector<StepId> recast_steps = {};  // one for each of Frame::recasts
  };

  // Returns the id after the last step.
  StepId EndOfSteps() const { return steps.end_id(); }

  // Returns the step before which what happens at a time of the trace has happened.
  StepId StepAt(Time time) const {
    return time < static_cast<Time>(step_at_time.size()) ? step_at_time[time]
                                                         : EndOfSteps();
  }

  // Returns that step for a time of the forward pass while frame `f` runs again.
  StepId RerunStepAt(FrameId f, const Frame& frame, Time time) const {
    const Rerun& rerun = reruns[f];
    if (time >= frame.rerun_stop) return rerun.end;
    return rerun_steps[rerun.first_place +
                       std::max(time - frame.call->start, 0)];
  }

  // Returns the step at which an operator runs again that the policy neither saves
  // nor skips.
  StepId RerunStepOf(FrameId f, const Frame& frame, OperatorId op) const {
    return Previous(
        rerun_steps[reruns[f].first_place + frame.call->PlaceOf(op) + 1]);
  }

  IndexedVector<StepId, Simulation::Step> steps;
  double recompute_ms = 0;  // of the steps that run again
  std::vector<StepId> step_at_time;
  IndexedVector<OperatorId, StepId> step_of_operator;  // the trace's own
  IndexedVector<FrameId, Rerun> reruns;
  // For each frame that runs again and each of its operators up to where it
  // stops: the step before which what comes before the operator has happened.
  std::vector<StepId> rerun_steps;
};

StepLayout LayOutSteps(const PreparedTrace& prepared,
                       const IndexedVector<FrameId, Frame>& frames);

}  // namespace acplan::graph
