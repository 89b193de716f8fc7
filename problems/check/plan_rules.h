#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// The rules that whoever asked for a plan has set, beyond its budget.
struct PlanRules {
  std::vector<std::string> ac_units;  // empty: no restriction
  std::vector<std::string> fsdp_units;
  std::optional<int> max_units;
  graph::OperatorPatterns patterns = {};  // kept by units with operators
};

// The first rule that the plan breaks, as one line; nullopt where it keeps all:
// no unit is a leaf or never called; no nested units; no unit above an FSDP
// unit and none outside ac_units, where those are given; every unit of a plan at
// operator granularity decides about its operators; nothing is needed that a
// plan on a trace skips; every ratio discards
// between 0 bytes and all of IA, and (but under the torch memory model) no more
// than forced saves allow; every record is within budget_bytes - reserve_bytes;
// what the plan states of itself (peak, where, recomputation, bound, gap,
// overhead, baseline, and for each unit) is true.
std::optional<std::string> FirstBrokenRule(const graph::Profile& profile,
                                           const Plan& plan,
                                           const PlanRules& rules = {},
                                           const graph::Trace* trace = nullptr);

}  // namespace acplan::problems
