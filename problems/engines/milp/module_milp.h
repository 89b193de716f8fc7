#pragma once

#include <vector>

#include "problems/model/module_problem.h"
#include "problems/model/module_solution.h"
#include "solver/milp.h"
#include "solver/search.h"

namespace acplan::problems {

// A module problem as a mixed-integer program in tight form, for CBC.
//
// For candidate i with knots (b_0, f_0) ... (b_m, f_m), D_i = b_m:
//   y_i in {0, 1}   i is a unit
//   s_i in [0, 1]   share of D_i that it discards
//   c_i >= 0        ms that it recomputes
//
//   minimise   sum_i c_i
//   subject to s_i <= y_i
//              c_i >= f_0 y_i
//              c_i >= f_k y_i + slope_k (D_i s_i - b_k y_i)
//                                             for every segment k of the curve
//              sum_{i on p} y_i <= 1          for every maximal root-to-leaf
//                                             path p
//              sum_{t_j < t_k} D_j s_j - sum_{j contains k} h_j y_j >= b_k - B
//                                             for every record k that may bind
//              sum_i y_i <= max_units         if given
//
// The cost rows are the perspective of the convex curve: there is no big-M, and
// the relaxation is the convex hull of each unit on its own. Record rows are
// divided by the largest need, and curves are cut at the bytes that any record
// could use.
struct ModuleMilp {
  solver::Milp milp;
  std::vector<int> candidates;   // nodes
  std::vector<int> record_rows;  // indices into milp.rows

  // Returns a column of the k-th candidate, like the two functions below.
  static int UnitColumn(size_t k) { return static_cast<int>(3 * k); }
  static int ShareColumn(size_t k) { return UnitColumn(k) + 1; }
  static int CostColumn(size_t k) { return UnitColumn(k) + 2; }
};
ModuleMilp ToMilp(const ModuleProblem& problem);

// Returns the rows over the units alone: path cliques and max_units.
// unit_column has the column of y for every candidate and -1 for every other
// node.
std::vector<solver::Milp::Row> ChoiceRows(const ModuleProblem& problem,
                                          const std::vector<int>& unit_column);

// Returns the nodes whose records may bind, in time order. If no candidate
// holds bytes, leaves out a record if an earlier one needs as much, or if the
// bytes that could be discarded between it and a later one cannot make up the
// difference.
std::vector<int> BindingRecords(const ModuleProblem& problem);

// Solves any module problem with CBC. The bytes of the units that CBC chooses
// are then recomputed exactly.
ModuleSolution SolveByCbc(const ModuleProblem& problem,
                          const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
