#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// The rules of a planning question, apart from its budget.
struct PlanRules {
  std::vector<std::string> ac_units;  // empty: no restriction
  std::vector<std::string> fsdp_units;
  std::optional<int> max_units;
  graph::OperatorPatterns patterns = {};  // kept by units with operators
};

// Returns the first rule that the plan breaks, as one line; nullopt if it keeps
// all. The rules: no unit is a leaf or never called; units are not nested; no
// unit is above an FSDP unit or, if ac_units are given, outside of them; every
// unit of a plan at operator granularity decides about its operators; a plan on
// a trace skips nothing that is needed; every ratio discards between 0 bytes
// and all of IA, and, except under the torch memory model, at most what forced
// saves allow; every record is within budget_bytes - reserve_bytes; all that
// the plan states of itself (peak, place of the peak, recomputation, bound,
// gap, overhead, baseline, and each unit's figures) is true.
std::optional<std::string> FirstBrokenRule(const graph::Profile& profile,
                                           const Plan& plan,
                                           const PlanRules& rules = {},
                                           const graph::Trace* trace = nullptr);

}  // namespace acplan::problems
