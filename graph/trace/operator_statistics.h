#pragma once

#include <optional>

#include "graph/profile/profile.h"
#include "graph/trace/call_facts.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Holds what is known of the calls of a step. Refers to the trace.
struct CallFacts {
  explicit CallFacts(const Trace& step)
      : trace(step),
        forest(MakeCallForest(step)),
        saves(FindCallSaves(step)),
        writes(FindInPlaceWrites(step)) {}

  const Trace& trace;
  CallForest forest;
  CallSaves saves;
  InPlaceWrites writes;
};

// The operator statistics of a module that is called: `sac` in Aggregate's
// contract, which says when there are none.
std::optional<SacStatistics> OperatorStatistics(const CallFacts& facts,
                                                int32_t module);

}  // namespace acplan::graph
