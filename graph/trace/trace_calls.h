#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/base/json_fields.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

using TraceCalls = IndexedVector<CallId, TraceCall>;

// Reads the calls of a trace file. `trace` has the modules, the storages, the tensors
// and the ends of the passes. Throws InputError (ReadTrace says where).
TraceCalls ParseCalls(const JsonField& field, const Trace& trace);

// Innermost calls, kNone if there is none.
struct InnermostCalls {
  IndexedVector<OperatorId, CallId> of_operator;  // that runs the operator
  std::vector<CallId> at_time;  // that starts before and ends after
};

InnermostCalls FindInnermostCalls(const TraceCalls& calls, Time operators);

// Returns how many places GivenStorage has: one for each of the call's `arguments`, and
// one for each of its `further_inputs` after them.
int32_t GivenCount(const TraceCall& call);

// Returns the storage of what a call is given at a place in [0, GivenCount(call)).
StorageId GivenStorage(const Trace& trace, const TraceCall& call,
                       int32_t place);

}  // namespace acplan::graph
