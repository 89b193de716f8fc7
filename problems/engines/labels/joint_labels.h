#pragma once

#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves a joint problem with prefix structure exactly, by label setting along
// the forward order; the walk, the passes and the completion bound are those of
// module_labels.h, over labels that are points (bytes discarded so far, ms).
//
// A unit adds its base to every label that meets the records inside it, then
// its groups one at a time: each label continues with and without the group's
// bytes and ms, and labels that another one beats are dropped. Within a unit
// the completion bound is that of the rest of the walk plus the relaxation of
// the groups still to come. A group is not branched on if the bound says for
// every label that the group's other side cannot lead to a better plan (its
// reduced cost exceeds the gap): among some thirty groups a handful stay open.
// Times are added in fixed point, so equal blocks give equal sums and their
// labels merge. Groups of very few bytes make most labels. So the search begins
// with plans without them, and with a relaxation that has them for nothing,
// which often is the proof.
//
// `known_units` is a plan that keeps every record (net bytes as attainable by
// its units' policies): the search starts from it.
//
// Throws std::invalid_argument without prefix structure.
ModuleSolution SolveJointByLabels(
    const JointProblem& problem, const solver::SearchLimits& limits = {},
    const std::vector<ChosenUnit>& known_units = {});

}  // namespace acplan::problems
