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
  // One value for each column, integers exact; empty if there is no solution.
  std::vector<double> x = {};
  double objective = kInfinity;  // of x
  // No solution is better than this. +infinity if there is no solution at all.
  double bound = -kInfinity;
  double gap = kInfinity;  // max(0, objective - bound) / max(|objective|, 1e-9)
  int64_t nodes = 0;
  double seconds = 0;
};

// The error of a run of CBC that yields no answer.
class CbcFailure : public std::runtime_error {
 public:
  explicit CbcFailure(const std::string& what, std::vector<double> x = {})
      : std::runtime_error("CBC failed" + what), x_(std::move(x)) {}

  // A point that some part of CBC took for a solution within tolerances; empty if there is
  // none. If one part of CBC calls a program infeasible that another part solves, this
  // point often is the cause. A caller that knows the rows exactly may cut it off
  // (cut_off.h) and try again.
  const std::vector<double>& x() const { return x_; }

 private:
  std::vector<double> x_;
};

struct CbcOptions {
  SearchLimits limits;
  // A known solution (one value for each column) to start from; ignored if it is not
  // feasible.
  std::optional<std::vector<double>> warm_start = std::nullopt;
  // If true, CBC uses branch and bound alone, with tight tolerances, from the first run on.
  // This is slower, and otherwise done only after a run that contradicts itself. A program
  // that such a run calls infeasible may be feasible within the usual tolerances.
  bool is_careful = false;
};

// Solves with COIN-OR CBC. Deterministic for a given seed, up to the moment at which a time
// limit or an interrupt strikes. Solutions are checked against the program before they are
// returned. Throws std::invalid_argument for an invalid program, invalid limits or a warm
// start of another size, and CbcFailure if CBC fails in a way that yields no answer. CBC's
// preprocessing is never used: in 2.10.8 it makes some optima wrong. Concurrent calls wait
// for each other, since CBC's driver is not safe to run concurrently in one process.
MilpSolution SolveWithCbc(const Milp& milp, const CbcOptions& options = {});

}  // namespace acplan::solver
