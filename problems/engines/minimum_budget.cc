#include "problems/engines/minimum_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "problems/engines/milp/module_milp.h"
#include "problems/model/module_solution.h"
#include "solver/cbc_solver.h"
#include "solver/stop.h"

namespace acplan::problems {

using solver::SearchStatus;

using solver::Milp;

namespace {

// The least time for this search: a user who set a short limit for planning
// still wants to know what budget would fit.
constexpr double kLeastSeconds = 1;

// CBC's tolerance, relative to the largest record.
constexpr double kMilpTolerance = 1e-6;

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

int64_t WholeBytes(double bytes) {
  // A hair above a whole number is rounding noise of sums, not a byte.
  return static_cast<int64_t>(
      std::ceil(bytes - 1e-9 * std::max(1.0, bytes / 1e6)));
}

double LargestBase(const ModuleProblem& problem) {
  double most = problem.fixed_bytes;
  for (const ModuleProblem::Node& node : problem.nodes) {
    if (node.time >= 0) most = std::max(most, node.base_bytes);
    most = std::max(most, node.unit_base_bytes.value_or(0));
  }
  return most;
}

// Decides whether some plan meets a budget. The walk carries the most bytes
// discarded so far: entry k with at most k units, a single entry where their
// number is free. More is never worse, so nothing else need be remembered.
class FeasibilityWalk {
 public:
  FeasibilityWalk(const ModuleProblem& problem, double budget)
      : problem_(problem), budget_(budget) {
    const size_t n = problem.nodes.size();
    subtree_base_.assign(n, kImpossible);
    for (size_t i = n; i-- > 0;) {
      const ModuleProblem::Node& node = problem.nodes[i];
      if (node.time >= 0) subtree_base_[i] = node.base_bytes;
      for (size_t c = i + 1; c < i + node.subtree_size;
           c += problem.nodes[c].subtree_size) {
        subtree_base_[i] = std::max(subtree_base_[i], subtree_base_[c]);
      }
    }
  }

  bool IsFeasible() const {
    const size_t counts =
        problem_.max_units ? static_cast<size_t>(*problem_.max_units) + 1 : 1;
    std::vector<double> most(counts, 0.0);
    most = WalkSiblings(0, static_cast<int>(problem_.nodes.size()),
                        std::move(most));
    return most.back() != kImpossible;
  }

 private:
  std::vector<double> WalkSiblings(int begin, int end,
                                   std::vector<double> most) const {
    for (int i = begin; i < end; i += problem_.nodes[i].subtree_size) {
      most = WalkNode(i, std::move(most));
    }
    return most;
  }

  std::vector<double> WalkNode(int i, std::vector<double> most) const {
    const ModuleProblem::Node& node = problem_.nodes[i];
    std::vector<double> as_unit(most.size(), kImpossible);
    if (!node.curve.empty()) {
      const double need = node.unit_base_bytes.value_or(subtree_base_[i]) +
                          node.held_bytes - budget_;
      const size_t added_units = problem_.max_units ? 1 : 0;
      for (size_t k = added_units; k < most.size(); ++k) {
        if (most[k - added_units] >= need) {
          as_unit[k] = most[k - added_units] + node.curve.back().bytes;
        }
      }
    }
    if (node.subtree_size > 1) {
      most = WalkSiblings(i + 1, i + node.subtree_size, std::move(most));
    }
    if (node.must_be_unit) return as_unit;
    for (size_t k = 0; k < most.size(); ++k) {
      if (node.time >= 0 && most[k] < node.base_bytes - budget_) {
        most[k] = kImpossible;
      }
      most[k] = std::max(most[k], as_unit[k]);
    }
    return most;
  }

  const ModuleProblem& problem_;
  double budget_;
  std::vector<double> subtree_base_;
};

MinimumBudget ByBisection(const ModuleProblem& problem,
                          const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  int64_t infeasible = WholeBytes(problem.fixed_bytes) - 1;
  int64_t feasible = WholeBytes(LargestBase(problem));
  // Below the fixed bytes, or below 0, no budget is feasible.
  while (feasible - infeasible > 1) {
    solver::StopIfDue();
    const bool is_interrupted =
        limits.interrupted && limits.interrupted->load();
    if (is_interrupted ||
        stopwatch.Seconds() > std::max(limits.time_limit_s, kLeastSeconds)) {
      return {.bytes = feasible,
              .bound_bytes = infeasible + 1,
              .stopped_by = is_interrupted ? solver::StoppedBy::kInterrupt
                                           : solver::StoppedBy::kTime};
    }
    const int64_t middle = infeasible + (feasible - infeasible) / 2;
    const bool fits =
        FeasibilityWalk(problem, static_cast<double>(middle)).IsFeasible();
    (fits ? feasible : infeasible) = middle;
  }
  return {.bytes = feasible, .proven = true, .bound_bytes = feasible};
}

// Returns the most bytes in use if these units discard all they can.
int64_t LeastPeak(const ModuleProblem& problem, std::vector<ChosenUnit> units) {
  for (ChosenUnit& unit : units) {
    unit.net_bytes = problem.nodes[unit.node].curve.back().bytes;
  }
  return WholeBytes(SolutionPeak(problem, units));
}

// Solves the problem by CBC, whose answer is exact up to its tolerances.
MinimumBudget Nearly(const ModuleProblem& problem,
                     const solver::SearchLimits& limits) {
  const double unit = std::max(1.0, LargestBase(problem));
  Milp milp;
  milp.name = "minimum_budget";
  const int budget = milp.AddColumn(
      {.name = "budget", .lower = problem.fixed_bytes / unit, .cost = 1});
  std::vector<int> candidates;
  std::vector<int> y(problem.nodes.size(), -1);
  for (int i = 0; i < static_cast<int>(problem.nodes.size()); ++i) {
    if (problem.nodes[i].curve.empty()) continue;
    candidates.push_back(i);
    y[i] = milp.AddColumn(
        {.name = fmt::format("y{}", i), .upper = 1, .is_integer = true});
  }
  for (Milp::Row& row : ChoiceRows(problem, y)) milp.AddRow(std::move(row));
  for (size_t k = 0; k < problem.nodes.size(); ++k) {
    const ModuleProblem::Node& record = problem.nodes[k];
    if (record.time < 0) continue;
    Milp::Row row{.name = fmt::format("record{}", k),
                  .lower = record.base_bytes / unit,
                  .terms = {{budget, 1}}};
    for (const int j : candidates) {
      const ModuleProblem::Node& node = problem.nodes[j];
      double released = 0;
      if (node.time < record.time) released += node.curve.back().bytes;
      if (j <= static_cast<int>(k) &&
          static_cast<int>(k) < j + node.subtree_size) {
        released -= node.held_bytes;
      }
      if (released != 0) row.terms.push_back({y[j], released / unit});
    }
    milp.AddRow(std::move(row));
  }
  solver::SearchLimits exactly = limits;
  exactly.gap = 0;
  exactly.on_progress = nullptr;
  const solver::MilpSolution solved =
      solver::SolveWithCbc(milp, {.limits = exactly});
  std::vector<ChosenUnit> units;
  if (!solved.x.empty()) {
    for (const int i : candidates) {
      if (solved.x[y[i]] > 0.5) units.push_back({.node = i});
    }
  }
  // CBC's bound holds to its tolerance.
  const double bound = (solved.bound - kMilpTolerance) * unit;
  return {.bytes = LeastPeak(problem, std::move(units)),
          .proven = solved.status == solver::MilpStatus::kOptimal,
          .bound_bytes = WholeBytes(std::isfinite(bound)
                                        ? std::max(bound, problem.fixed_bytes)
                                        : problem.fixed_bytes),
          .stopped_by = solved.stopped_by};
}

// Asks CBC for plans a byte below until there is none.
MinimumBudget ByCbc(const ModuleProblem& problem,
                    const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  MinimumBudget least = Nearly(problem, limits);
  ModuleProblem below = problem;
  for (ModuleProblem::Node& node : below.nodes) {
    if (!node.curve.empty()) node.curve = {{node.curve.back().bytes, 1}};
  }
  while (least.proven) {
    below.budget_bytes = static_cast<double>(least.bytes - 1);
    solver::SearchLimits any = limits;
    any.gap = 1;
    any.on_progress = nullptr;
    any.time_limit_s =
        std::max(limits.time_limit_s, kLeastSeconds) - stopwatch.Seconds();
    const ModuleSolution solution = SolveByCbc(below, any);
    if (solution.status == SearchStatus::kInfeasible) break;
    if (solution.units.empty()) {
      least.proven = false;
      least.stopped_by = solution.stopped_by;
    } else {
      least.bytes = LeastPeak(problem, solution.units);
    }
  }
  least.bound_bytes =
      least.proven ? least.bytes : std::min(least.bound_bytes, least.bytes);
  if (!least.proven && least.stopped_by == solver::StoppedBy::kNothing) {
    least.stopped_by = solver::StoppedBy::kUnproven;
  }
  return least;
}

}  // namespace

MinimumBudget FindMinimumBudget(const ModuleProblem& problem,
                                const solver::SearchLimits& limits) {
  return problem.prefix_structure ? ByBisection(problem, limits)
                                  : ByCbc(problem, limits);
}

}  // namespace acplan::problems
