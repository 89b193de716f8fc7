#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/base/flag.h"
#include "problems/trace/rerun_bound/rerun_problem.h"
#include "solver/min_cut.h"

namespace acplan::problems {

// The rerun problem (rerun_problem.h) at some operators only, its moments,
// with a price a byte at each of them in place of the budget. It is a minimum cut.

// The operators that run again, with their time and the bytes that are live.
struct Reruns {
  // Operators of the forward pass.
  graph::IndexedVector<graph::OperatorId, graph::Flag> runs_again = {};
  double ms = 0;                       // of those
  std::vector<int64_t> bytes_at = {};  // live, indexed by moment
};

struct PricedReruns {
  // No schedule has less ms + the sum over moments of price * (bytes - held bytes).
  double least = 0;
  Reruns reruns = {};  // that has as much, but for rounding
};

// Refers to the problem, which must outlive it.
class RerunCut {
 public:
  RerunCut(const RerunProblem& problem, std::vector<graph::OperatorId> moments);

  const std::vector<graph::OperatorId>& moments() const { return moments_; }

  // Solves the problem at these prices: ms a byte at each moment, at least 0.
  PricedReruns Solve(const std::vector<double>& prices) const;

 private:
  // The meaning of an edge of the network: time of an operator, bytes of a moment, or
  // what is always so.
  struct Meaning {
    double ms = 0;
    int64_t bytes = 0;
    int moment = -1;
    graph::OperatorId op = graph::kNone;
  };

  void AddMoment(int moment);
  int NodeOfRerun(graph::OperatorId op);
  void AddEdge(int from, int to, const Meaning& meaning);

  const RerunProblem& problem_;
  std::vector<graph::OperatorId> moments_;
  solver::FlowNetwork network_;
  std::vector<Meaning> meanings_;  // an edge
  std::map<graph::OperatorId, int> rerun_of_;
  double whole_ms_ = 0;
};

// Returns the live bytes at an operator if these operators run again, as late as can
// be.
int64_t BytesWithReruns(
    const RerunProblem& problem, graph::OperatorId op,
    const graph::IndexedVector<graph::OperatorId, graph::Flag>& runs_again);

}  // namespace acplan::problems
