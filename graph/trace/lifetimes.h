#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/moved_storages.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"
#include "graph/trace/step_layout.h"

namespace acplan::graph {

// Returns the lives of all storages of a planned step: first those of the storages as
// the trace has them, in their order, then those of what comes back from the
// host, in the order of `moves`, then those of what runs again.
LifeList FindLives(const PreparedTrace& prepared, const Frames& frames,
                   const StepLayout& layout, const MovedStorages& moves);

}  // namespace acplan::graph
