#pragma once

#include <vector>

#include "graph/trace/peak_account.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"

namespace acplan::problems {

// Returns the contents of memory at the peak of a rank in a step under a plan,
// as graph::AccountForPeak does for one device. Parameters, gradients and
// optimizer state count with the rank's shards; kGathered has what the rank
// holds in addition of parameters that are whole then (trace_memory.h). The
// entries add up to the peak that plans are made with. The peak counts a
// gradient as sharded while operators run again for the operator that makes it,
// so the entry of such a gradient may be negative. Throws under the conditions
// of AccountForPeak and BytesOfRank.
graph::PeakAccount AccountForPeakOfRank(
    const graph::Trace& trace,
    const std::vector<graph::CheckpointedModule>& modules,
    const MemoryOptions& options);

// Returns the floor of a rank: no plan needs less on it (graph::FindPeakFloor).
// Throws under the conditions of BytesOfRank.
graph::PeakFloor FindPeakFloorOfRank(const graph::Trace& trace,
                                     const MemoryOptions& options);

}  // namespace acplan::problems
