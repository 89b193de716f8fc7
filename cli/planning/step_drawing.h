#pragma once

#include <string>

#include "cli/terminal/memory_plot.h"
#include "cli/terminal/terminal.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// Returns the bytes in use over a simulated step.
MemoryCurve CurveOf(const graph::Trace& trace,
                    const graph::Simulation& simulation);

// Draws the step of a trace as a rank sees it, without the plan and with it,
// and the budget. Returns "" if stdout is no screen, and for plans that are not
// of the simulated step.
std::string StepDrawing(const graph::Trace* trace, const problems::Plan& plan,
                        const Terminal& terminal);

}  // namespace acplan::cli
