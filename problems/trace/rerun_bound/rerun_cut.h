#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "problems/trace/rerun_bound/rerun_problem.h"
#include "solver/min_cut.h"

namespace acplan::problems {

// The rerun problem (rerun_problem.h) at some operators only, its moments,
// with a price a byte at each of them in place of the budget. It is a minimum cut.

// What runs again, and what that comes to.
struct Reruns {
  std::vector<char> runs_again = {};   // an operator of the forward pass
  double ms = 0;                       // of those
  std::vector<int64_t> bytes_at = {};  // live, a moment
};

struct PricedReruns {
  // No schedule has less ms + the sum over moments of price * (bytes - held bytes).
  double least = 0;
  Reruns reruns = {};  // that has as much, but for rounding
};

// Refers to the problem, which must outlive it.
class RerunCut {
 public:
  RerunCut(const RerunProblem& problem, std::vector<int32_t> moments);

  const std::vector<int32_t>& moments() const { return moments_; }

  // `prices`: ms a byte, a moment, at least 0.
  PricedReruns Solve(const std::vector<double>& prices) const;

 private:
  // What an edge of the network stands for: time of an operator, bytes of a
  // moment, or what is always so.
  struct Meaning {
    double ms = 0;
    int64_t bytes = 0;
    int moment = -1;
    graph::OperatorId op = -1;
  };

  void AddMoment(int moment);
  int NodeOfRerun(graph::OperatorId op);
  void AddEdge(int from, int to, const Meaning& meaning);

  const RerunProblem& problem_;
  std::vector<int32_t> moments_;
  solver::FlowNetwork network_;
  std::vector<Meaning> meanings_;    // an edge
  std::map<int32_t, int> rerun_of_;  // an operator
  double whole_ms_ = 0;
};

// The live bytes at an operator if these operators run again, as late as can be.
int64_t BytesWithReruns(const RerunProblem& problem, graph::OperatorId op,
                        const std::vector<char>& runs_again);

}  // namespace acplan::problems
