#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/need_policies.h"

namespace acplan::problems {

// The walk over a need graph, from the last operator to the first, as steps on
// states. A state is a set of bits, and says all that the rest of the walk has to
// know of a policy: which results are needed and not made yet, and what was
// decided of groups with operators on both sides. A result has a bit from the
// first operator that may need it to the one that creates it, and bits are used
// again. Where there are too few, a result is not tracked: it is never needed,
// which costs less than it does.
struct NeedStep {
  graph::GroupId group = {};
  double ms = 0;
  uint64_t requests = 0;  // of backward, before the step
  uint64_t makes = 0, reads = 0;
  uint64_t is_saved = 0, is_rerun = 0;  // the decision about the group
  uint64_t open = 0;                    // bits that still count after the step
  uint64_t not_kept = 0;                // results that may not be kept
  // The results that count when they are kept, with their bytes.
  std::vector<std::pair<uint64_t, int64_t>> bytes = {};
  bool is_always_needed = false;
  bool may_save = true, may_rerun = true;

  bool IsNeeded(uint64_t state) const {
    return is_always_needed || (state & makes) != 0;
  }
  bool MaySave(uint64_t state) const {
    return may_save && (state & (is_rerun | not_kept)) == 0;
  }
  bool MayRerun(uint64_t state) const {
    return may_rerun && (state & is_saved) == 0;
  }
  int64_t KeptBytes(uint64_t state) const {
    int64_t sum = 0;
    for (const auto& [result, result_bytes] : bytes) {
      sum += (state & result) != 0 ? result_bytes : 0;
    }
    return sum;
  }
  uint64_t AfterNothing(uint64_t state) const { return state & open; }
  uint64_t AfterSave(uint64_t state) const {
    return ((state & ~makes) | is_saved) & open;
  }
  // Returns the state before an operator that runs again. A bit that ends here may be
  // that of a result that it reads.
  uint64_t AfterRerun(uint64_t state) const {
    return (((state & ~makes) | is_rerun) & open) | reads;
  }
};

// Returns the steps of a walk over a graph, from its last operator.
std::vector<NeedStep> StepsOf(const NeedGraph& graph,
                              const NeedChoices& choices);

// Returns the group of each step.
std::vector<graph::GroupId> GroupsOf(const std::vector<NeedStep>& steps);

}  // namespace acplan::problems
