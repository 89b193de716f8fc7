#pragma once

#include "problems/check/offload_rules.h"
#include "problems/check/plan_effect.h"
#include "problems/check/plan_rules.h"
#include "problems/check/policy_rules.h"

// The check of plans: what a plan does, and the first rule that it breaks.
//
// The folder shares no code with the engines, the optimisation problems and the
// records that they are made of: it reads names and orders straight from the
// profile, and states every rule and every sum once more. What both sides use are
// statistics of the profile (the groups of operators and their trade-off, for plans
// with ratios), and, for plans on traces, what defines the memory of a step: the
// simulation (graph/trace/simulation.h), a rank's share (plan/trace_memory.h) and
// how a plan's units are found in a trace (plan/plan_on_trace.h). There the check
// tells whether the answer is what the simulation says, not whether the simulation
// is right: docs/measured/README.md compares it with real steps.
