#pragma once

#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/trace/policies/need_policies.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/relaxation.h"
#include "solver/milp.h"

namespace acplan::problems {

// A relaxation of a trace problem (relaxation.h) as a mixed-integer program, which
// decides about operators one by one: saved, run again or skipped. The label
// engine takes lists of policies instead (need_policies.h); both have the same
// optimum, unless those lists are relaxed.
//
// Data
// The relaxation's forest, times t, records b_k, budget B and the bytes u_c in
//   use while a unit c runs. For a candidate c with a need graph (need_graph.h)
//   its operators o with their groups g(o) and t_co ms, the bytes a_c that it
//   discards where nothing is kept, and m_cr for a result r that is kept.
//   "r after o" is the result as o, which makes or writes to it, leaves it: for
//   those that read it or ask for it before the next operator that writes to it.
// Variables
//   y_c in {0, 1}     c is a unit
//   K_cg in {0, 1}    its policy saves group g
//   R_co in {0, 1}    o runs again; neither: it is skipped
//   N_cor in [0, 1]   r after o is needed
//   k_cr in [0, 1]    r is kept
// Model
//   minimise   sum_c sum_o t_co R_co
//   subject to K_cg(o) + R_co <= y_c
//              N_cor >= y_c             where backward asks for r after o
//              N_cor >= R_cq            where q reads r after o
//              K_cg(o) + R_co >= N_cor
//              K_cg(o) + R_co >= y_c    where o makes no tensor
//              k_cr >= K_cg(o) + N_cor - 1       o the last that writes to r
//              K_cg(o) + N_cor <= 1     where r may not be kept
//              sum_{c on p} y_c <= 1    for every root-to-leaf path p
//              sum_{c on p} y_c >= 1    where the end of the path p from a root
//                                       must be a unit or inside of one
//              sum_c y_c <= max_units   if given
//   and, with D_c = a_c y_c - sum_r m_cr k_cr,
//              sum_{t_c < t_k} D_c >= b_k - B    for every record k without a unit
//                                                around it
//              sum_{t_d < t_c} D_d >= u_c - B    for every unit c
// The last two are rows for all k and c, with what they ask for taken away where
// it is not asked. A candidate without a need graph discards a_c and costs c_c ms,
// with columns for kinds of groups as in joint_problem.h.
struct NeedMilp {
  // Bytes in rows are in units of so many.
  static constexpr double kUnitBytes = 512;

  solver::Milp milp;
  // The column of y of each candidate, -1: it may be no unit.
  graph::IndexedVector<CandidateId, int> unit_columns;
  // The column of K of each candidate and group, -1: nothing of it is ever needed.
  graph::IndexedVector<CandidateId, graph::IndexedVector<graph::GroupId, int>>
      saved_columns;
};

// Builds the program. `choices`: those of the relaxation (ChoicesOfCalls). The budget
// is that of relaxation.joint.
NeedMilp ToMilp(const TraceProblem& problem, const TraceRelaxation& relaxation,
                const ChoicesByCandidate& choices);

// Returns the units of a solution, one value a column, as the simulation takes them: a
// module with several calls among them saves a group if all of them do.
// For problems where operators may be skipped.
std::vector<graph::CheckpointedModule> UnitsOf(const TraceProblem& problem,
                                               const NeedMilp& form,
                                               const std::vector<double>& x);

}  // namespace acplan::problems
