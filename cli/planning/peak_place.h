#pragma once

#include <string>

#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// Returns the place of the peak of a step under a plan, on one rank, if the
// trace is given and the memory model is the trace's; else `module`.
std::string PeakPlace(const graph::Trace* trace, const problems::Plan& plan,
                      const problems::MemoryOptions& memory,
                      const std::string& module);

}  // namespace acplan::cli
