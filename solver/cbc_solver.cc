#include "solver/cbc_solver.h"

#include <fmt/format.h>

#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "solver/cbc_relaxation.h"
#include "solver/cbc_run.h"
#include "solver/cbc_watch.h"
#include "solver/checked_solution.h"
#include "solver/lp_solver.h"

// From a program to an answer that can be relied on:
//
// 1. The relaxation. If it has no solution, neither has the program; if its solution is
//    integral, that is the answer; otherwise its objective is a bound.
// 2. A run of CBC (cbc_run.cc), from the best solution known. Its solution is polished,
//    that is, made exact in the integer columns and solved for again in the others, and
//    checked against the program.
// 3. CBC's conclusion is believed only if the polished solution costs as much as CBC
//    claims, and if no better solution that can be polished was seen on the way. Otherwise
//    there is a second, careful run: with tight tolerances, by branch and bound without
//    CBC's driver, heuristics and cuts. If that run contradicts itself, too, the call
//    fails. (A point that cannot be polished is no solution: it keeps the rows only within
//    tolerances.)
//
// The answer is the best solution of all runs. If a limit strikes, the answer is that
// solution, with the best bound that nothing contradicts.

namespace acplan::solver {
namespace {

// Smaller gaps are nothing but rounding.
constexpr double kRoundingGap = 1e-9;
// Primal tolerances of careful runs. With the tight one Clp now and then calls a feasible
// program infeasible, so only callers that ask for it (CbcOptions::is_careful) get it.
constexpr double kUsualTolerance = 1e-7;
constexpr double kTightTolerance = 1e-9;
// A gap is relative to the objective's size, or to this if the objective is nearer to zero.
constexpr double kLeastObjective = 1e-9;
// Values of the relaxation this close to an integer count as integral.
constexpr double kIntegralTolerance = 1e-9;

double Gap(double objective, double bound) {
  if (!std::isfinite(objective) || !std::isfinite(bound)) return kInfinity;
  return std::max(0.0, objective - bound) /
         std::max(std::abs(objective), kLeastObjective);
}

MilpSolution Solution(std::optional<CheckedSolution> best, double bound,
                      StoppedBy stopped_by, int64_t nodes, CbcWatch& watch) {
  MilpSolution solution;
  solution.stopped_by = stopped_by;
  solution.nodes = nodes;
  solution.seconds = watch.clock().Seconds();
  if (best) {
    solution.x = std::move(best->x);
    solution.objective = best->objective;
    if (stopped_by == StoppedBy::kNothing) bound = best->objective;
    solution.bound = std::min(bound, best->objective);
    solution.gap = Gap(solution.objective, solution.bound);
    const bool proven = solution.gap <= kRoundingGap;
    solution.status = proven ? MilpStatus::kOptimal : MilpStatus::kFeasible;
    if (proven) solution.stopped_by = StoppedBy::kNothing;
    watch.SawSolution(solution.objective);
  } else {
    solution.bound = bound;
  }
  watch.SawBound(solution.bound);
  watch.SawNodes(nodes);
  return solution;
}

MilpSolution NoSolution(MilpStatus status, const CbcWatch& watch) {
  MilpSolution solution;
  solution.status = status;
  solution.seconds = watch.clock().Seconds();
  if (status == MilpStatus::kInfeasible) solution.bound = kInfinity;
  return solution;
}

// Solves a program without rows, column by column: nothing ties the columns to each other.
MilpSolution SolveWithoutRows(const Milp& milp, CbcWatch& watch) {
  std::vector<double> x;
  for (const Milp::Column& column : milp.columns) {
    const ColumnBounds bounds = BoundsOf(column);
    double value = std::clamp(0.0, bounds.lower, bounds.upper);
    if (column.cost > 0) value = bounds.lower;
    if (column.cost < 0) value = bounds.upper;
    if (std::isinf(value)) return NoSolution(MilpStatus::kUnbounded, watch);
    x.push_back(value);
  }
  const double objective = ObjectiveValue(milp, x);
  return Solution(CheckedSolution{.x = std::move(x), .objective = objective},
                  objective, StoppedBy::kNothing, 0, watch);
}

bool IsTriviallyInfeasible(const Milp& milp) {
  return std::any_of(milp.columns.begin(), milp.columns.end(),
                     [](const Milp::Column& column) {
                       const ColumnBounds bounds = BoundsOf(column);
                       return bounds.lower > bounds.upper;
                     }) ||
         std::any_of(milp.rows.begin(), milp.rows.end(),
                     [](const Milp::Row& row) {
                       return IsEmpty(row) && (row.lower > kIntegerTolerance ||
                                               row.upper < -kIntegerTolerance);
                     });
}

bool IsIntegral(const Milp& milp, std::span<const double> x) {
  for (size_t j = 0; j < x.size(); ++j) {
    if (milp.columns[j].is_integer &&
        std::abs(x[j] - std::round(x[j])) > kIntegralTolerance) {
      return false;
    }
  }
  return true;
}

// The search while the caller holds COIN-OR's lock. `start` is a known solution, if any.
class LockedSearch {
 public:
  LockedSearch(const Milp& milp, std::optional<CheckedSolution> start,
               bool is_always_careful, CbcWatch& watch)
      : milp_(milp),
        watch_(watch),
        is_always_careful_(is_always_careful),
        scale_(ScaleFor(milp)),
        relaxation_(LoadForCbc(milp, scale_)),
        best_(std::move(start)) {}

  MilpSolution Solve() {
    if (auto answer = SolveByRelaxation()) return *std::move(answer);
    for (const bool is_careful : {false, true}) {
      if (is_always_careful_ && !is_careful) continue;
      const CbcRun run =
          RunCbc({.milp = milp_,
                  .relaxation = *relaxation_,
                  .scale = scale_,
                  .start = best_,
                  .is_careful = is_careful,
                  .primal_tolerance =
                      is_always_careful_ ? kTightTolerance : kUsualTolerance},
                 watch_);
      watch_.RethrowError();
      nodes_ += run.nodes;
      if (auto answer = Conclude(run)) return *std::move(answer);
      if (watch_.ShouldStop()) return StopWith(watch_.Poll());
    }
    throw CbcFailure(": its answers contradict the program or each other",
                     best_ ? std::move(best_->x) : std::vector<double>());
  }

 private:
  // Returns the answer with the best solution and the bound.
  MilpSolution StopWith(StoppedBy why) {
    return Solution(std::move(best_), bound_, why, nodes_, watch_);
  }

  // Returns the answer if solving the relaxation is enough for it.
  std::optional<MilpSolution> SolveByRelaxation() {
    const LpStatus status = SolveRelaxation(*relaxation_, watch_);
    if (status == LpStatus::kStopped) return StopWith(watch_.Poll());
    if (status == LpStatus::kUnbounded) return SolveUnbounded();
    if (status == LpStatus::kInfeasible && !best_) {
      return NoSolution(MilpStatus::kInfeasible, watch_);
    }
    if (status == LpStatus::kOptimal) {
      bound_ = scale_.FromCoin(relaxation_->getObjValue());
      const std::span<const double> x(relaxation_->getColSolution(),
                                      milp_.columns.size());
      if (IsIntegral(milp_, x)) {
        std::optional<CheckedSolution> polished = Polished(milp_, x, watch_);
        if (polished && scale_.IsClose(polished->objective, bound_)) {
          best_ = Better(std::move(best_), std::move(polished));
          return StopWith(StoppedBy::kNothing);
        }
      }
      watch_.SawBound(bound_);
      watch_.Report(/*now=*/true);
    }
    if (best_ && Gap(best_->objective, bound_) <= watch_.limits().gap) {
      return StopWith(StoppedBy::kGap);
    }
    return std::nullopt;
  }

  // Returns the answer if the relaxation is unbounded: then the program is unbounded, too,
  // if it has any solution.
  MilpSolution SolveUnbounded() {
    if (best_) return NoSolution(MilpStatus::kUnbounded, watch_);
    Milp any = milp_;
    for (Milp::Column& column : any.columns) column.cost = 0;
    MilpSolution solution =
        LockedSearch(any, std::nullopt, is_always_careful_, watch_).Solve();
    if (!solution.x.empty()) return NoSolution(MilpStatus::kUnbounded, watch_);
    solution.bound =
        solution.status == MilpStatus::kInfeasible ? kInfinity : -kInfinity;
    return solution;
  }

  // Returns the run's solution, polished: CBC's own, or the best one that an event showed
  // if that is better.
  std::optional<CheckedSolution> PolishedSolution(const CbcRun& run) {
    std::optional<CheckedSolution> solution;
    if (!run.x.empty()) solution = Polished(milp_, run.x, watch_);
    const bool is_seen_better =
        run.best_seen &&
        (!solution ||
         (run.best_seen->objective < solution->objective &&
          !scale_.IsClose(run.best_seen->objective, solution->objective)));
    if (!is_seen_better) return solution;
    return Better(std::move(solution),
                  Polished(milp_, run.best_seen->x, watch_));
  }

  // Returns the answer, or nothing if the run contradicts itself.
  std::optional<MilpSolution> Conclude(const CbcRun& run) {
    std::optional<CheckedSolution> solution = PolishedSolution(run);
    // A sound solution is as good as CBC claims, and as good as any known one.
    const bool is_sound =
        solution && scale_.IsClose(solution->objective, run.claimed) &&
        (!best_ || solution->objective <= best_->objective ||
         scale_.IsClose(solution->objective, best_->objective));
    best_ = Better(std::move(best_), std::move(solution));
    switch (EndOf(run, watch_)) {
      case CbcRun::End::kStopped:
        return Stop(run);
      case CbcRun::End::kGap:
        if (!is_sound) return std::nullopt;
        bound_ = std::max(
            bound_, watch_.limits().gap == 0 ? best_->objective : run.bound);
        return StopWith(StoppedBy::kGap);
      case CbcRun::End::kOptimal:
        if (!is_sound) return std::nullopt;
        bound_ = best_->objective;
        return StopWith(StoppedBy::kNothing);
      case CbcRun::End::kInfeasible:
        if (best_) return std::nullopt;
        return NoSolution(MilpStatus::kInfeasible, watch_);
      case CbcRun::End::kFailed:
        break;
    }
    return std::nullopt;
  }

  // Returns the answer after a run that a limit ended.
  MilpSolution Stop(const CbcRun& run) {
    const bool is_absurd = best_ && run.bound > best_->objective &&
                           !scale_.IsClose(run.bound, best_->objective);
    if (!is_absurd) bound_ = std::max(bound_, run.bound);
    StoppedBy why = watch_.Poll();
    if (why == StoppedBy::kNothing) {
      why = IsAtNodeLimit(run) ? StoppedBy::kNodes : StoppedBy::kTime;
    }
    return StopWith(why);
  }

  const Milp& milp_;
  CbcWatch& watch_;
  const bool is_always_careful_;
  const ObjectiveScale scale_;
  const std::unique_ptr<OsiClpSolverInterface> relaxation_;
  std::optional<CheckedSolution> best_;
  double bound_ = -kInfinity;
  int64_t nodes_ = 0;
};

// Locks COIN-OR for one call at a time, since CBC's driver keeps state in globals. Returns
// an unowned lock if the search should stop before it gets the lock.
std::unique_lock<std::timed_mutex> LockCoin(CbcWatch& watch) {
  static std::timed_mutex mutex;
  std::unique_lock lock(mutex, std::defer_lock);
  while (!watch.ShouldStop() &&
         !lock.try_lock_for(std::chrono::milliseconds(20))) {
  }
  return lock;
}

void ValidateLimits(const SearchLimits& limits) {
  if (std::isnan(limits.time_limit_s)) {
    throw std::invalid_argument("the time limit is not a number");
  }
  if (!(limits.gap >= 0)) {
    throw std::invalid_argument(
        fmt::format("the gap {} is not at least 0", limits.gap));
  }
  if (limits.node_limit < 0) {
    throw std::invalid_argument(
        fmt::format("the node limit {} is negative", limits.node_limit));
  }
}

MilpSolution Solve(const Milp& milp, const CbcOptions& options,
                   CbcWatch& watch) {
  if (IsTriviallyInfeasible(milp)) {
    return NoSolution(MilpStatus::kInfeasible, watch);
  }
  if (std::all_of(milp.rows.begin(), milp.rows.end(), [](const Milp::Row& row) {
        return IsFree(row) || IsEmpty(row);
      })) {
    return SolveWithoutRows(milp, watch);
  }
  std::optional<CheckedSolution> best;
  if (options.warm_start && IsFeasible(milp, *options.warm_start)) {
    best = Checked(milp, Rounded(milp, *options.warm_start));
    if (best) watch.SawSolution(best->objective);
  }
  const auto lock = LockCoin(watch);
  if (!lock.owns_lock()) {
    return Solution(std::move(best), -kInfinity, watch.Poll(), 0, watch);
  }
  return LockedSearch(milp, std::move(best), options.is_careful, watch).Solve();
}

}  // namespace

MilpSolution SolveWithCbc(const Milp& milp, const CbcOptions& options) {
  ValidateMilp(milp);
  ValidateLimits(options.limits);
  CbcWatch watch(options.limits);
  MilpSolution solution = Solve(milp, options, watch);
  watch.Report(/*now=*/true);
  watch.RethrowError();
  return solution;
}

}  // namespace acplan::solver
