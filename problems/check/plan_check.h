#pragma once

#include "problems/check/offload_rules.h"
#include "problems/check/plan_effect.h"
#include "problems/check/plan_rules.h"
#include "problems/check/policy_rules.h"

// The check of plans: what a plan does, and the first rule that it breaks.
//
// The folder shares no code with the engines, the optimisation problems and
// their records: it reads names and orders straight from the profile, and
// states every rule and every sum once more. Both sides share only statistics
// of the profile (the groups of operators and their trade-off, for plans with
// ratios) and, for plans on traces, the definition of a step's memory: the
// simulation (graph/trace/simulation.h), a rank's share (plan/trace_memory.h)
// and the search for a plan's units in a trace (plan/plan_on_trace.h). There
// the check verifies that the answer agrees with the simulation, not that the
// simulation is right: docs/measured/README.md compares the simulation with
// real steps.
