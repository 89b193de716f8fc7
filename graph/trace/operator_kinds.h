#pragma once

#include "graph/profile/operator_kind.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Returns the kind of each operator of a trace.
IndexedVector<OperatorId, OperatorKind> KindsOf(const Trace& trace);

}  // namespace acplan::graph
