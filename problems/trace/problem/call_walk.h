#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/model/module_problem.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The order in which units release and ask again, as the walk over a forest that
// joint problems are made of.
//
// Idea. A record of a joint problem counts the units that the walk has passed.
// A unit releases what autograd would have kept from the end of its call until
// it runs again. So each time t of the step belongs to a record: behind the last
// candidate that is released at t. In most models what is released is a prefix
// of the walk. Where it is not (skip connections), the record counts more as
// released than is, which relaxes.
//
// Nodes are the candidates, in pre-order, and leaves without a curve that carry
// the records between them: one before each call and one at the end. Example: a
// block b with the calls c and d inside makes the nodes
//
//   0 leaf   1 b   2 leaf   3 c   4 leaf   5 d   6 leaf
//
// Record 0 has the times before b; 2 those in b before c; 3 those in c and while
// c runs again; 4 those between c and d; 5 those in d and while d runs again; 1
// those in b after d; and 6 those after b until d runs again.
using CandidateList = graph::IndexedVector<CandidateId, CandidateCall>;

struct CallWalk {
  ModuleProblem forest;
  graph::IndexedVector<WalkNodeId, CandidateId> candidate_at;
  graph::IndexedVector<CandidateId, WalkNodeId> node_of;
  std::vector<WalkNodeId> record_of;  // indexed by time
};
CallWalk WalkOverCalls(const graph::Trace& trace,
                       const CandidateList& candidates);

}  // namespace acplan::problems
