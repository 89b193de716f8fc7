#pragma once

#include <optional>
#include <string>

#include "graph/trace/frames.h"
#include "graph/trace/prepared_trace.h"

namespace acplan::graph {

// Returns why PyTorch refuses to run a frame's operators again, or would compute
// something wrong, if it does: one line that begins with the module. The rules
// are those of Simulate.
std::optional<std::string> RerunRefusal(const Frame& frame,
                                        const PreparedTrace& prepared);

}  // namespace acplan::graph
