#pragma once

#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Returns the units of a plan among the modules of a trace, in the form that
// the simulation takes: a unit's `ops` are the operators of each of its calls.
//
// Throws InputError ("plan: ...") for a unit that the trace lacks or that the
// plan has twice, for operators that differ from those of the trace (their
// names as in the trace, or without namespace and overload: "mm" for
// "aten.mm.default"), for results that an operator does not make, and for a
// unit with a ratio but without operators, which does not say what is kept.
std::vector<graph::CheckpointedModule> CheckpointedModules(
    const graph::Trace& trace, const std::vector<PlannedModule>& units);

// Returns the trace with the segments (graph/trace/segments.h) that the units
// of a plan name and that the trace lacks. Returns nothing if there are none:
// the plan is for the trace itself. Throws InputError ("plan: ...") for
// children that are no run, and for segments that overlap.
std::optional<graph::Trace> WithSegmentsOf(
    const graph::Trace& trace, const std::vector<PlannedModule>& units);

}  // namespace acplan::problems
