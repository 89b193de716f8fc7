#pragma once

#include <vector>

#include "graph/trace/peak_account.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"

namespace acplan::problems {

// What a step under a plan has in memory at the peak of a rank, as
// graph::AccountForPeak says it of one device: of parameters, gradients and
// optimizer state the rank's shards, and under kGathered what it has besides of
// parameters that are whole then (trace_memory.h). The entries add up to the peak
// that plans are made with. Since that counts a gradient as sharded while what
// runs again does so for the operator that makes it, its entry may be negative
// then. Throws as AccountForPeak and BytesOfRank do.
graph::PeakAccount AccountForPeakOfRank(
    const graph::Trace& trace,
    const std::vector<graph::CheckpointedModule>& modules,
    const MemoryOptions& options);

// No plan needs less on a rank (graph::FindPeakFloor). Throws as BytesOfRank does.
graph::PeakFloor FindPeakFloorOfRank(const graph::Trace& trace,
                                     const MemoryOptions& options);

}  // namespace acplan::problems
