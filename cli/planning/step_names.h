#pragma once

#include <string>
#include <string_view>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

// The names of what runs in a step of a simulated step.
namespace acplan::cli {

// Returns "forward", "backward", "recompute" or "optimizer".
std::string_view PhaseOf(const graph::Trace& trace,
                         const graph::Simulation::Step& step);

std::string_view NameOf(const graph::Trace& trace,
                        const graph::Simulation::Step& step);

// Returns the module that runs the operator; "" if none does.
std::string_view ModuleOf(const graph::Trace& trace,
                          const graph::Simulation::Step& step);

// Returns "backward, aten.mm.default in Net.fc, at nets/fc.py:12".
std::string StepText(const graph::Trace& trace,
                     const graph::Simulation::Step& step);

// Returns a field of CSV by RFC 4180: names may have commas and quotes.
std::string CsvField(std::string_view text);

}  // namespace acplan::cli
