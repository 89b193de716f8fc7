#pragma once

#include <cstdint>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/counted_bytes.h"
#include "problems/trace/relaxation/decisions.h"

namespace acplan::problems {

// Returns the most bytes that any plan in which candidate `c` is a unit has in use, at
// least, at the times whose records are in its subtree: while it runs, while it
// runs again, and until its frame is gone (ModuleProblem::Node::unit_base_bytes).
// Bytes that units before it in the walk release are not subtracted.
int64_t BytesWhileRunning(const TraceProblem& problem,
                          const DecidedChoices& choices,
                          const CountedBytes& witnessed, CandidateId c);

}  // namespace acplan::problems
