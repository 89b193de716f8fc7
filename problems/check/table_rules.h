#pragma once

#include <optional>
#include <string>

#include "problems/check/plan_rules.h"
#include "problems/plan/length_steps.h"
#include "problems/plan/plan_table.h"

namespace acplan::problems {

// Returns the first rule that a table of plans breaks, as one line; nothing if it keeps
// all. The rules: the longest batch of training has an entry; each entry's plan keeps
// the rules of plans on the trace of its longest length; the run of all batches ends
// on the device, with the bytes and retries that the table states; batches recompute what
// it states, and the bound is not above that.
//
// Everything is computed from traces, order and table alone. Throws InputError as
// TraceAt for an entry's length, as BrokenDeviceRule, and as ComputeEffect.
std::optional<std::string> BrokenTableRule(const LengthProblem& problem,
                                           const PlanTable& table,
                                           const PlanRules& rules = {});

}  // namespace acplan::problems
