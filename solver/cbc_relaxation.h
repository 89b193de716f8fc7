#pragma once

#include <memory>
#include <optional>
#include <span>

#include "solver/cbc_watch.h"
#include "solver/checked_solution.h"
#include "solver/lp_solver.h"
#include "solver/milp.h"

class OsiClpSolverInterface;

namespace acplan::solver {

// Says how a program's objective was changed for COIN-OR, whose tolerances are
// absolute.
struct ObjectiveScale {
  double FromCoin(double value) const { return value / factor + offset; }

  // Returns whether two values of the objective are meant to be the same.
  bool IsClose(double a, double b) const;

  double factor = 1;
  double offset = 0;
};

ObjectiveScale ScaleFor(const Milp& milp);

// Returns whether a row holds for any x, or has no say in x.
bool IsFree(const Milp::Row& row);
bool IsEmpty(const Milp::Row& row);

// The program as CBC takes it, unsolved: columns in their order, bounds of
// integers as integers, without free and empty rows.
std::unique_ptr<OsiClpSolverInterface> LoadForCbc(const Milp& milp,
                                                  const ObjectiveScale& scale);

// Solves the linear relaxation, and once more in another way before it believes
// that there is no solution.
LpStatus SolveRelaxation(OsiClpSolverInterface& osi, CbcWatch& watch);

// Returns the best solution with x's values in the integer columns, rounded;
// the continuous ones are solved for anew, since those of a branch-and-bound
// belong to integers that are off by its tolerance.
std::optional<CheckedSolution> Polished(const Milp& milp,
                                        std::span<const double> x,
                                        CbcWatch& watch);

}  // namespace acplan::solver
