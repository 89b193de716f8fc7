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

// The problem of any schedule with memory counted at some moments only: a mixed-integer
// program whose optimum is no more than the problem's, and is a schedule.
//
// Chosen first runs cut the stages into segments; segment k ends with the first run of
// e_k. Its nodes "at home" are those that first run in it.
// Columns, binary: R_ki, i runs again in segment k, for i of earlier segments;
//   S_kb, value b is live across the end of segment k.
// Rows, k counting segments:
//   S_{k-1,b} + R_{k,maker(b)} >= R_ki        for what i reads, not made at home
//   S_{k-1,b} + R_{k,maker(b)} >= 1           for what nodes at home read, likewise
//   S_{k-1,b} + R_{k,maker(b)} >= S_kb        for values not made at home, and >= 1 for
//                                             what the step returns in the last segment
//   bytes at the first run of e_k + sum of m_b S_kb over the others <= B
// Every schedule that keeps the budget satisfies them, whatever runs again, how often and
// in which order.
//
// Inner moments are runs of a node e in a stage t that is a segment of its own. There what
// is live is known, as nodes run once, in the order of the graph: a value made after e is
// if S_{k-1,b}; one made by e or before if something at e or after reads it, or S_kb, or,
// e having made it, if R_ke. A binary column stands for "one of these". With inner
// moments of every run in every stage this is the problem itself.

struct InnerMoment {
  int32_t stage = 0;
  int32_t node = 0;  // which runs again in it

  auto operator<=>(const InnerMoment&) const = default;
};

struct Moments {
  std::set<int32_t> first_runs =
      {};  // nodes; the last of the graph is no such moment
  // first_runs has the stage, if not the last one, and the stage before, if any.
  std::set<InnerMoment> inner = {};
};

class MomentModel {
 public:
  // Refers to the graph. Rows of bytes are wider by this share of the largest size in them:
  // solutions are to be cut off that break them in whole numbers.
  MomentModel(const graph::ScheduleGraph& graph, int64_t budget_bytes,
              const Moments& moments, double wider = 1e-6);

  // Times are in units of time_unit().
  const solver::Milp& program() const { return program_; }
  double time_unit() const { return time_unit_ > 0 ? time_unit_ : 1; }
  // A bound on the program's optimum as one on the problem's: rounded up where times are
  // whole numbers.
  double Rounded(double bound) const;

  // Of a solution of the program: whether it breaks a row of bytes, which a solver's
  // tolerances let it. Then the program gets a row that it breaks and that every schedule
  // within the budget keeps.
  bool CutOff(const std::vector<double>& x);

  // One value a column. The schedule must keep the budget; then they are a solution.
  std::vector<double> Encode(const StagedSchedule& schedule) const;

  // The schedule of a solution: in every segment what runs again runs as late as it can.
  StagedSchedule Decode(const std::vector<double>& x) const;

 private:
  struct Segment {
    int32_t begin = 0;
    int32_t end = 0;
    std::vector<int> run = {};   // a node before begin: its column R, or -1
    std::vector<int> keep = {};  // a value made until end: its column S, or -1
  };
  // A column and those that it is at least.
  struct Any {
    int column = 0;
    std::vector<int> of = {};
  };
  // A row of the program: units of bytes by column, and how many there may be.
  struct Bytes {
    int row = 0;
    std::map<int, int64_t> units = {};
    int64_t most = 0;
  };
  class Builder;

  // A solution as whole numbers, and each of any_ the largest of its columns.
  std::vector<double> Exact(std::vector<double> x) const;

  const graph::ScheduleGraph& graph_;
  double time_unit_ = 0;  // 0: times are no whole numbers
  solver::Milp program_;
  std::vector<Segment> segments_;
  std::vector<Any> any_;
  std::vector<Bytes> bytes_;
};

}  // namespace acplan::problems
