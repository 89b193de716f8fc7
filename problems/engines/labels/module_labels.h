#pragma once

#include "problems/model/module_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves a module problem with prefix structure exactly, by label setting along
// the forward order.
//
// In that structure every record asks for a total of the bytes discarded before
// it, so the walk has to remember only E(D): the least milliseconds with which
// the modules passed so far can have discarded D bytes. E is a sorted list of
// points and line segments (labels). At a module
//   E becomes min(E after walking the children,
//                 E cut to the bytes that the records inside ask for, plus the
//                 unit's curve)
// and at a record with need N the labels with D < N die. The sum of E and a
// curve is the lower envelope of E shifted to each knot and of each vertex of E
// followed by a piece of the curve: two curves are never both strictly between
// knots unless a record binds between them.
//
// A label also dies if E(D) + Q(D) exceeds the best plan known, where Q is a
// lower bound on the cost of the rest: the same recursion backwards with every
// step made convex, which turns it into merges of slopes. Passes with a growing
// limit on the labels kept find good plans first; the first pass that drops
// nothing proves the optimum. Bytes are fixed-point integers (at least 2^-20 of
// a byte if sizes allow), so equal blocks give equal sums and their labels
// merge: symmetry costs nothing.
//
// max_units adds the number of units as a second coordinate, priced in Q by the
// multiplier that makes the root bound largest.
//
// `known_units`, if not empty, are units that keep every record: the search
// starts from them.
//
// Throws std::invalid_argument without prefix structure.
ModuleSolution SolveByLabels(const ModuleProblem& problem,
                             const solver::SearchLimits& limits = {},
                             const std::vector<ChosenUnit>& known_units = {});

}  // namespace acplan::problems
