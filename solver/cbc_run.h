#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "solver/cbc_relaxation.h"
#include "solver/cbc_watch.h"
#include "solver/checked_solution.h"
#include "solver/milp.h"

class OsiClpSolverInterface;

namespace acplan::solver {

// One branch-and-bound of CBC. `relaxation` holds the scaled program with its linear
// relaxation already solved.
struct CbcTask {
  const Milp& milp;
  const OsiClpSolverInterface& relaxation;
  const ObjectiveScale& scale;
  // A solution to start from.
  std::optional<CheckedSolution> start = std::nullopt;
  // If true, tight tolerances and branch and bound alone, without CBC's driver, heuristics
  // and cuts.
  bool is_careful = false;
  double primal_tolerance =
      1e-7;  // The primal tolerance of a careful run, in rows that Clp has scaled.
};

// The outcome of a run, as CBC sees it.
struct CbcRun {
  enum class End { kOptimal, kInfeasible, kStopped, kGap, kFailed };

  bool has_searched = false;  // the search began and ended, perhaps by a limit
  bool was_stopped = false;  // when the search ended, it had been asked to stop
  int status = -1;           // CbcModel's
  int secondary_status = -1;
  double claimed = kInfinity;  // the objective that CBC says x has
  double bound = -kInfinity;
  int64_t nodes = 0;
  std::vector<double> x = {};
  // The best solution that an event showed.
  std::optional<CheckedSolution> best_seen = {};
};

// Runs CBC, which is not safe to run concurrently. Throws std::runtime_error if CBC throws.
CbcRun RunCbc(const CbcTask& task, CbcWatch& watch);

CbcRun::End EndOf(const CbcRun& run, CbcWatch& watch);

// Returns whether CBC reached its limit on nodes.
bool IsAtNodeLimit(const CbcRun& run);

}  // namespace acplan::solver
