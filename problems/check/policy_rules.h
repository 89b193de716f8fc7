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

// Rules of what is decided about one module's operators, stated once more.

// The first of PyTorch's rules (graph/profile/sac_statistics.h) or of the patterns
// that decisions break, as one line; nullopt where they keep all. `decision(k)` is
// that about operator k. What is skipped neither runs again nor is saved, so it
// breaks no rule that wants the one or the other not to be; what is in place on
// something skipped does not run again. With `draws_alone` a random operator
// starts from a random state of its own, so it is decided about without regard to
// the others, may run again wherever it is, and what is in place, or read its parent's
// result before that was written to, may be kept though its parent is skipped.
std::optional<std::string> BrokenOperatorRule(
    const graph::SacStatistics& sac, const graph::OperatorPatterns& patterns,
    const std::function<graph::OperatorDecision(int)>& decision,
    bool draws_alone = false);

// Bytes of the operators that every policy must save; view-like operators count
// nothing and tie nothing.
double ForcedBytes(const graph::SacStatistics& sac);

// A policy for one module's operators, with what is said of it.
struct StatedPolicy {
  std::vector<char> save;    // an operator: 1 save, 0 recompute
  double memory_budget = 1;  // the share of the memory that may be saved
  int64_t capacity_bytes = 0;
  int64_t saved_bytes = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
};

// The first rule that the policy breaks, as one line; nullopt where it keeps
// all: one decision an operator; PyTorch's rules (graph/profile/sac_statistics.h) and
// the patterns; the capacity is ceil(memory_budget * sum of memory), and no
// more is saved; the sums are true.
std::optional<std::string> FirstBrokenRule(
    const graph::SacStatistics& sac, const StatedPolicy& policy,
    const graph::OperatorPatterns& patterns = {});

}  // namespace acplan::problems
