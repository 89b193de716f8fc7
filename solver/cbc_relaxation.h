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

// The change of a program's objective for COIN-OR, whose tolerances are absolute.
struct ObjectiveScale {
  double FromCoin(double value) const { return value / factor + offset; }

  // Returns whether two values of the objective are equal within a tolerance relative to
  // their size.
  bool IsClose(double a, double b) const;

  double factor = 1;
  double offset = 0;
};

ObjectiveScale ScaleFor(const Milp& milp);

// Returns whether a row holds for any x (IsFree), or has no terms but zeros (IsEmpty).
bool IsFree(const Milp::Row& row);
bool IsEmpty(const Milp::Row& row);

// Returns the program as CBC takes it, unsolved: columns in their order, the bounds of
// integer columns as integers, no free rows and no empty rows.
std::unique_ptr<OsiClpSolverInterface> LoadForCbc(const Milp& milp,
                                                  const ObjectiveScale& scale);

// Solves the linear relaxation. If Clp finds no solution, solves it a second time in
// another way before the result is believed.
LpStatus SolveRelaxation(OsiClpSolverInterface& osi, CbcWatch& watch);

// Returns the best solution that has x's values, rounded, in the integer columns. The
// continuous columns are solved for again: their values in a branch-and-bound belong to
// integers that are off by its tolerance.
std::optional<CheckedSolution> Polished(const Milp& milp,
                                        std::span<const double> x,
                                        CbcWatch& watch);

}  // namespace acplan::solver
