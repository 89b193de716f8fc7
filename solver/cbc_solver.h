#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "solver/milp.h"
#include "solver/search.h"

namespace acplan::solver {

enum class MilpStatus {
  kOptimal,     // proven: gap 0 within tolerances
  kFeasible,    // a solution, stopped before the proof; see stopped_by
  kInfeasible,  // proven to have no solution
  kUnbounded,
  kNoSolution,  // a limit was hit before a solution was found
};

struct MilpSolution {
  MilpStatus status = MilpStatus::kNoSolution;
  StoppedBy stopped_by = StoppedBy::kNothing;
  // One value a column, integers exact; empty if there is no solution.
  std::vector<double> x = {};
  double objective = kInfinity;  // of x
  // No solution is better than this; +infinity where there is none at all.
  double bound = -kInfinity;
  double gap = kInfinity;  // max(0, objective - bound) / max(|objective|, 1e-9)
  int64_t nodes = 0;
  double seconds = 0;
};

// CBC failed in a way that is no answer.
class CbcFailure : public std::runtime_error {
 public:
  explicit CbcFailure(const std::string& what, std::vector<double> x = {})
      : std::runtime_error("CBC failed" + what), x_(std::move(x)) {}

  // What was a solution within tolerances, if anything, to some part of CBC: where one
  // calls the program infeasible that another solves, the solution often is the cause. Who
  // knows the rows exactly may cut it off (cut_off.h) and ask again.
  const std::vector<double>& x() const { return x_; }

 private:
  std::vector<double> x_;
};

struct CbcOptions {
  SearchLimits limits;
  // A known solution (one value a column) to start from; ignored where it is
  // not feasible.
  std::optional<std::vector<double>> warm_start = std::nullopt;
  // From the first run on, branch and bound alone, with tight tolerances:
  // slower, and otherwise done only where a run contradicts itself. What it calls
  // infeasible may be feasible within the usual tolerances.
  bool is_careful = false;
};

// Solves with COIN-OR CBC. Deterministic for a given seed, up to the moment
// that a time limit or an interrupt strikes. Solutions are checked against the
// program before they are returned. Throws std::invalid_argument for an invalid
// program, limits or a warm start of another size and CbcFailure where CBC fails
// in a way that is no answer.
// CBC's preprocessing is never used: in 2.10.8 it makes some optima wrong.
// Concurrent calls wait for each other (CBC's driver is not safe to run
// concurrently in one process).
MilpSolution SolveWithCbc(const Milp& milp, const CbcOptions& options = {});

}  // namespace acplan::solver
