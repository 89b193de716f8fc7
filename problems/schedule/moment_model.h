#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"
#include "solver/milp.h"

namespace acplan::problems {

// The problem of any schedule with memory counted at some moments only: a
// mixed-integer program whose optimum is at most the problem's and gives a
// schedule.
//
// Chosen first runs cut the stages into segments; segment k ends with the first
// run of e_k. Its nodes "at home" are those whose first run is in it.
// Columns, binary: R_ki, i runs again in segment k, for i of earlier segments;
//   S_kb, value b is live across the end of segment k.
// Rows, k counting segments:
//   S_{k-1,b} + R_{k,maker(b)} >= R_ki     for b that i reads, not made at home
//   S_{k-1,b} + R_{k,maker(b)} >= 1        for b that a node at home reads,
//                                          likewise
//   S_{k-1,b} + R_{k,maker(b)} >= S_kb     for values not made at home, and >= 1
//                                          for values that the step returns, in
//                                          the last segment
//   bytes at the first run of e_k + sum of m_b S_kb over the others <= B
// Every schedule that keeps the budget satisfies them, no matter which nodes
// run again, how often and in which order.
//
// Inner moments are runs of a node e in a stage t that is a segment of its own.
// There the live values are known, as nodes run once, in the order of the
// graph. A value made after e is live if S_{k-1,b}. A value made by e or before
// is live if a node at e or after reads it, or if S_kb, or, if e made it, if
// R_ke. A binary column stands for "one of these". With inner moments of every
// run in every stage this is the problem itself.

struct InnerMoment {
  int32_t stage = 0;
  int32_t node = 0;  // the node that runs again in it

  auto operator<=>(const InnerMoment&) const = default;
};

struct Moments {
  std::set<int32_t> first_runs =
      {};  // nodes; the last one of the graph is no such moment
  // If the stage of an inner moment is not the last one, first_runs has it, and
  // the stage before, if any.
  std::set<InnerMoment> inner = {};
};

class MomentModel {
 public:
  // Refers to the graph. Rows of bytes are wider by this share of the largest
  // size in them: solutions that break them in whole numbers have to be cut
  // off.
  MomentModel(const graph::ScheduleGraph& graph, int64_t budget_bytes,
              const Moments& moments, double wider = 1e-6);

  // Times are in units of time_unit().
  const solver::Milp& program() const { return program_; }
  double time_unit() const { return time_unit_ > 0 ? time_unit_ : 1; }
  // Returns a bound on the problem's optimum from one on the program's: rounded
  // up if times are whole numbers.
  double Rounded(double bound) const;

  // Returns whether a solution of the program breaks a row of bytes, which a
  // solver's tolerances allow. If it does, adds a row to the program that it
  // breaks and that every schedule within the budget keeps.
  bool CutOff(const std::vector<double>& x);

  // Returns one value for each column. If the schedule keeps the budget, which
  // it must, they are a solution.
  std::vector<double> Encode(const StagedSchedule& schedule) const;

  // Returns the schedule of a solution: in every segment the nodes that run
  // again run as late as they can.
  StagedSchedule Decode(const std::vector<double>& x) const;

 private:
  struct Segment {
    int32_t begin = 0;
    int32_t end = 0;
    std::vector<int> run = {};   // by node before begin: its column R, or -1
    std::vector<int> keep = {};  // by value made until end: its column S, or -1
  };
  // A column that is at least each of some others.
  struct Any {
    int column = 0;
    std::vector<int> columns = {};
  };
  // A row of the program: units of bytes by column, and the most units that
  // fit.
  struct Bytes {
    int row = 0;
    std::map<int, int64_t> units = {};
    int64_t most = 0;
  };
  class Builder;

  // Returns a solution as whole numbers; each column of any_ is the largest of
  // its columns.
  std::vector<double> Exact(std::vector<double> x) const;

  const graph::ScheduleGraph& graph_;
  double time_unit_ = 0;  // 0: times are no whole numbers
  solver::Milp program_;
  std::vector<Segment> segments_;
  std::vector<Any> any_;
  std::vector<Bytes> bytes_;
};

}  // namespace acplan::problems
