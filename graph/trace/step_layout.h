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
struct StepLayout {
  // The steps of a frame that runs again, [.., end).
  struct Rerun {
    bool is_laid_out = false;  // otherwise the frame never runs again
    size_t first_place = 0;    // of its operators in rerun_steps
    int32_t end = 0;
    std::vector<int32_t> recast_steps = {};  // one for each of Frame::recasts
  };

  int32_t StepCount() const { return static_cast<int32_t>(steps.size()); }

  // The step before which what happens at a time of the trace has happened.
  int32_t StepAt(int32_t time) const {
    return time < static_cast<int32_t>(step_at_time.size()) ? step_at_time[time]
                                                            : StepCount();
  }

  // The same for a time of the forward pass while frame `f` runs again.
  int32_t RerunStepAt(int32_t f, const Frame& frame, int32_t time) const {
    const Rerun& rerun = reruns[f];
    if (time >= frame.rerun_stop) return rerun.end;
    return rerun_steps[rerun.first_place +
                       std::max(time - frame.call->start, 0)];
  }

  // The step at which an operator runs again that the policy neither saves nor
  // skips.
  int32_t RerunStepOf(int32_t f, const Frame& frame, int32_t op) const {
    return rerun_steps[reruns[f].first_place + (op + 1 - frame.call->start)] -
           1;
  }

  std::vector<Simulation::Step> steps;
  double recompute_ms = 0;  // of the steps that run again
  std::vector<int32_t> step_at_time;
  std::vector<int32_t> step_of_operator;  // the trace's own
  std::vector<Rerun> reruns;              // by frame
  // For each frame that runs again and each of its operators up to where it
  // stops: the step before which what comes before the operator has happened.
  std::vector<int32_t> rerun_steps;
};

StepLayout LayOutSteps(const PreparedTrace& prepared,
                       const std::vector<Frame>& frames);

}  // namespace acplan::graph
