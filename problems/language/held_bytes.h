#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

using HeldBytes = graph::IndexedVector<graph::OperatorId, int64_t>;

// Returns, for each operator of the trace, the bytes of the storages that are live while
// it runs under a plan, be it the storage of the forward pass or what a rerun made in its
// place: a storage of which both are live counts once. So it is at most what the
// simulation has there. Throws as Simulator::Live.
//
// With the units fixed, it grows with the operators that are saved, and by less the more
// are saved already: a storage counts as long as anyone holds it, and each saved operator
// is one more holder.
HeldBytes HeldBytesOf(const graph::Trace& trace,
                      const graph::Simulator& simulator,
                      const std::vector<graph::CheckpointedModule>& units);

}  // namespace acplan::problems
