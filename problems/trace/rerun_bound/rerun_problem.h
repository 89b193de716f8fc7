#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::problems {

// The values that any schedule of a traced step has to keep or to make again, whatever
// its units: whole modules, policies, runs of modules, units inside units, or none at
// all.
//
// Data
//   A trace; t_o ms of operator o of the forward pass. Values: storages q of b_q
//   bytes that the forward pass makes, with the operators W_q that write to q (the
//   one that creates it, and those that change it in place before anybody uses
//   it), and the operators D_q that read it.
//   For each operator k of the step, forward, backward and optimizer: h_k bytes that
//   are live while it runs under any schedule; which values are among those (held);
//   and which others backward asks for at a later time (asked).
// Variables
//   r_o in {0, 1}       o runs again, once or several times
//   z_ok in {0, 1}      it does so after operator k, which is not before it
//   l_qk in {0, 1}      value q is live while operator k runs
// Model
//   minimise   sum over o of t_o r_o
//   subject to r_o >= z_ok
//              l_qk + z_wk >= 1      q asked at k and not held, w in W_q, w < k
//              l_qk + z_wk >= z_ok   q neither, o in D_q, w in W_q, w < o < k
//              h_k + sum over q not held at k of b_q l_qk <= B
//
// Every schedule at a peak of B bytes is a solution: let r and z say what runs
// again and when the last time is, and l what is live. Then
// - what backward asks for after k is live at k or made again after k, by all that
//   wrote to it;
// - what runs again after k reads its arguments then, each of which is live at k or
//   made again after k. Arguments from outside of a unit are counted where the trace
//   says that they are arguments of all modules that may be the unit: others, such
//   as a cast that autocast kept, may be made by other means.
// - h_k counts what the program holds as it was in the step; what backward asked for
//   before k and did not let go of; and what is there whatever the plan. For what
//   the simulator (graph/trace/simulation.h) accepts, these are its own lives, and the
//   sum over all lives at operator k is at most its peak. It counts more, as what
//   is made again for one node is there until a later one asks, and operators that
//   run again need memory as well: both are left out here, and so is that who runs
//   again several times costs several times. All of this makes the optimum lower.

struct RerunProblem {
  struct Value {
    graph::StorageId storage = {};
    int64_t bytes = 0;
    // Ascending; the first creates it.
    std::vector<graph::OperatorId> writers = {};
    // Ascending, after all writers.
    std::vector<graph::OperatorId> readers = {};
    // The operators [begin, end) during which it is held, ascending.
    std::vector<std::pair<graph::Time, graph::Time>> held_during = {};
    // It is asked for after every operator before this time; 0: never.
    graph::Time last_request = 0;

    bool IsHeldAt(graph::OperatorId op) const;
    bool IsAskedAfter(graph::OperatorId op) const {
      return StartOf(op) < last_request;
    }
  };

  // Times of the forward pass.
  graph::IndexedVector<graph::OperatorId, double> runtime_ms = {};
  std::vector<Value> values = {};  // by the last writer
  graph::IndexedVector<graph::OperatorId, int64_t> held_bytes = {};

  // Returns the live bytes at each operator if nothing runs again.
  graph::IndexedVector<graph::OperatorId, int64_t> BytesWithoutReruns() const;
};

// States the rerun problem. `bytes_of_rank`: what a rank has more at each operator
// (plan/trace_memory.h).
RerunProblem BuildRerunProblem(
    const graph::Trace& trace,
    const graph::IndexedVector<graph::OperatorId, int64_t>& bytes_of_rank);

}  // namespace acplan::problems
