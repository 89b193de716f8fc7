#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "problems/language/trainer_policy.h"
#include "problems/planner.h"

namespace acplan::problems {

// Units that are no modules of the trace, or that discard their results, are modules of a
// changed step.
//
// - Runs of blocks are segments (graph/trace/segments.h).
// - A module that discards its result keeps nothing of it either. A tensor of the result that
//   autograd saves for others counts as saved by the module itself, when it ends, and as asked
//   for when the gradient of what reads it arrives. So the rules of checkpoints hold: the
//   module runs again then. It has the new result twice, one for itself: a storage that the
//   operator of the result creates as well.
//
// Operators are those of the step, in the same order.

// The change that a choice of units needs.
struct StepChange {
  int32_t run_length = 1;  // blocks of a segment
  // Parts, ascending: those that discard their results, and the others beside them.
  std::vector<std::string> discarded = {};
  std::vector<std::string> readers = {};

  bool IsNone() const { return run_length == 1 && discarded.empty(); }
  bool operator==(const StepChange&) const = default;
};
StepChange ChangeOf(const BlockChoice& blocks);

// A step with a change, and its problem.
struct ChangedStep {
  ChangedStep(graph::Trace trace, const PlanningProblem& plain,
              const std::vector<graph::ModuleId>& blocks);
  ChangedStep(const ChangedStep&) = delete;
  ChangedStep& operator=(const ChangedStep&) = delete;

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  const PlanningProblem problem;
  std::vector<graph::ModuleId> blocks = {};  // of this trace
};

// Returns the step with a change; nothing if blocks that would be a run are not called one
// right after the other.
std::optional<graph::Trace> WithChange(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const StepChange& change);

}  // namespace acplan::problems
