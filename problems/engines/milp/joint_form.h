#pragma once

#include <vector>

#include "problems/model/joint_problem.h"
#include "solver/milp.h"

namespace acplan::problems {

// A joint problem as a mixed-integer program, for CBC.
//
// Equal groups of one unit are interchangeable, and so are whole modules: two
// siblings (with respect to the candidates, so modules between them do not
// matter) are alike if they have the same policies, count at the same records
// that may bind, hold no bytes at any of them, and their subtrees are alike. A
// class c is a set of M_c candidates that can change places in this sense. For
// class c with a_c, c_c, m_cg, t_cg as in joint_problem.h, and n_cg equal
// groups of kind g:
//   Y_c  in {0 .. M_c}         how many of them are units
//   Z_cg in {0 .. n_cg M_c}    how many groups of kind g all of these recompute
//
//   minimise   sum_c (c_c Y_c + sum_g t_cg Z_cg)
//   subject to Z_cg <= n_cg Y_c
//              sum_g min(m_cg, 1 - a_c) Z_cg >= (1 - a_c) Y_c      if a_c <= 0
//              sum_{c on p} Y_c / M_c <= 1       for every root-to-leaf path p
//                                                of classes
//              sum_{c before k} (a_c Y_c + sum_g m_cg Z_cg)
//                - sum_{c contains k} h_c Y_c >= b_k - B
//                                                  for every record k that may
//                                                  bind
//              sum_c Y_c <= max_units              if given
//
// Any solution can be shared out among single modules (docs/formulation.md).
// The second row keeps out units that discard nothing, which are never needed.
// Groups that cost nothing are recomputed wherever their unit is one. So are
// groups with at least as many bytes as the unit discards at most, since a unit
// that saves one discards nothing: their bytes are part of a_c, and their ms of
// c_c. The remaining m_cg and a_c are thus at most as large as the bytes that
// the unit can discard, times the number of groups. Without this, operators
// might make far more bytes than autograd keeps, which would lie outside CBC's
// tolerances. Candidates that no record counts are left out. In the row of
// record k, bytes are cut to those that alone meet it, and all record rows are
// divided by the same power of two, so that the largest need is kNeedScale or
// up to twice that. Needs are rounded up to possible sums of a row's bytes, and
// rows are a little wider: readers of a solution check it in whole bytes.
struct JointMilp {
  static constexpr double kNeedScale = 1000;

  struct UnitClass {
    std::vector<int> nodes;  // in node order
    int unit_column = 0;
    PolicyPoint first;  // the policy of a unit without any Z
    // Indexed by kind of the policies; -1: every unit recomputes all its groups
    // of it.
    std::vector<int> kind_columns;
  };
  solver::Milp milp;
  std::vector<UnitClass> classes;  // a class precedes those inside it
  std::vector<int> records;        // nodes, in time order
  // Indices into milp.rows.
  std::vector<int> choice_rows;  // path cliques and max_units
  std::vector<int> record_rows;  // one for each record
};
JointMilp ToMilp(const JointProblem& problem);

// Returns the policies of a candidate. This and the functions below serve
// readers of the form.
const JointProblem::Policies& PoliciesOf(const JointProblem& problem, int node);
// Returns the bytes that a record asks for.
double NeedAt(const JointProblem& problem, int record);
// Returns whether `other` is the node or inside of it.
bool Contains(const JointProblem& problem, int node, int other);

}  // namespace acplan::problems
