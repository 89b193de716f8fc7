#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "problems/model/module_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// An answer to a module problem.
struct ModuleSolution {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  std::vector<ChosenUnit> units;  // in node order
  double ms = std::numeric_limits<double>::infinity();
  double bound_ms = 0;  // no solution costs less
  std::string engine;   // "labels" or "cbc"
  int64_t nodes = 0;    // labels, or branch-and-bound nodes
  int64_t rows = 0;     // records that may bind
  int64_t columns = 0;  // candidates, or columns of the MILP
  double seconds = 0;
};

using SolveModuleProblem = std::function<ModuleSolution(
    const ModuleProblem&, const solver::SearchLimits&)>;

// Does what every engine does around its search. If a problem meets its budget
// without units, it is solved at once, regardless of the limits. Otherwise
// multiplies all times by a power of two that brings the dearest unit near
// 1000, so that tolerances mean the same for microseconds and for hours, and
// gives the problem to `solve`. Scales answers and progress back.
ModuleSolution SolveWithScaledTimes(const ModuleProblem& problem,
                                    const solver::SearchLimits& limits,
                                    const SolveModuleProblem& solve);

// The same for problems that are more than a module problem: `solve` gets the
// factor, too. A problem that needs no units has no candidates left.
using SolveScaled = std::function<ModuleSolution(
    double factor, ModuleProblem scaled, const solver::SearchLimits&)>;
ModuleSolution SolveWithTimeFactor(const ModuleProblem& problem,
                                   const solver::SearchLimits& limits,
                                   const SolveScaled& solve);

// Returns the bytes that sums of doubles may lose. A record may exceed the
// budget by as much.
double ByteTolerance(const ModuleProblem& problem);

// Returns the total cost of the chosen units.
double SolutionCost(const ModuleProblem& problem,
                    const std::vector<ChosenUnit>& units);

// Returns the most bytes in use over all records with these units.
double SolutionPeak(const ModuleProblem& problem,
                    const std::vector<ChosenUnit>& units);

// Returns the cheapest bytes with which exactly these units meet every record;
// nullopt if they cannot. The result is exact: the records ask for nested sums
// of convex curves, so the greedy choice, which takes the cheapest available
// bytes record by record, is optimal.
std::optional<std::vector<ChosenUnit>> CheapestBytes(
    const ModuleProblem& problem, const std::vector<int>& unit_nodes);

// Leaves out units that no record needs, dearest first, and later ones first
// among equals. The result costs no more and breaks no further record.
std::vector<ChosenUnit> WithoutNeedlessUnits(const ModuleProblem& problem,
                                             std::vector<ChosenUnit> units);

}  // namespace acplan::problems
