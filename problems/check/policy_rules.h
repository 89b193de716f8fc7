#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/simulation.h"

namespace acplan::problems {

// The rules for decisions about one module's operators, stated once more.

// Returns the first rule that the decisions break, as one line; nullopt if they
// keep all. The rules are PyTorch's (graph/profile/sac_statistics.h) and the
// patterns. `decision(k)` is the decision about operator k. A skipped operator
// neither runs again nor is saved, so it breaks no rule that forbids one or the
// other. An operator that is in place on a skipped operator's result must not
// run again. With `draws_alone` each random operator starts from a random state
// of its own, which relaxes the rules: it is decided about without regard to
// the other random operators and may run again anywhere; and an operator that
// is in place, or that read its parent's result before that was written to, may
// be kept though its parent is skipped.
std::optional<std::string> BrokenOperatorRule(
    const graph::SacStatistics& sac, const graph::OperatorPatterns& patterns,
    const std::function<graph::OperatorDecision(int)>& decision,
    bool draws_alone = false);

// Returns the bytes of the operators that every policy must save. View-like
// operators count nothing and tie nothing.
double ForcedBytes(const graph::SacStatistics& sac);

// A policy for one module's operators, with the figures stated for it.
struct StatedPolicy {
  std::vector<char> save;    // an operator: 1 save, 0 recompute
  double memory_budget = 1;  // the share of the memory that may be saved
  int64_t capacity_bytes = 0;
  int64_t saved_bytes = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
};

// Returns the first rule that the policy breaks, as one line; nullopt if it
// keeps all. The rules: there is one decision for each operator; the decisions
// keep PyTorch's rules (graph/profile/sac_statistics.h) and the patterns; the
// capacity is ceil(memory_budget * sum of memory) and bounds the saved bytes;
// the sums are true.
std::optional<std::string> FirstBrokenRule(
    const graph::SacStatistics& sac, const StatedPolicy& policy,
    const graph::OperatorPatterns& patterns = {});

}  // namespace acplan::problems
