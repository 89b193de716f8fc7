#include "problems/label_passes.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace acplan::problems {

using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Proof tolerance, relative to the objective.
constexpr double kTolerance = 1e-9;

constexpr std::array<size_t, 4> kWidths = {64, 1024, 65536,
                                           std::numeric_limits<size_t>::max()};

}  // namespace

ModuleSolution SearchByPasses(const ModuleProblem& problem, double root_bound,
                              const SearchLimits& limits,
                              const LabelSearch& search) {
  const solver::Stopwatch stopwatch;
  ModuleSolution solution;
  solution.engine = "labels";
  solution.columns = std::ranges::count_if(
      problem.nodes, [](const auto& node) { return !node.curve.empty(); });
  solution.rows = std::ranges::count_if(problem.nodes, [&](const auto& node) {
    return node.time >= 0 && node.base_bytes > problem.budget_bytes;
  });

  if (problem.fixed_bytes > problem.budget_bytes || root_bound == kInf) {
    solution.status = SearchStatus::kInfeasible;
    solution.bound_ms = kInf;
    solution.seconds = stopwatch.Seconds();
    return solution;
  }

  double best = kInf;
  // A problem that needs no units has no candidates.
  if (!search.known.empty() && solution.columns > 0) {
    best = search.cost(search.known);
    solution.units = search.known;
  }
  double proven = std::max(0.0, root_bound);
  int64_t labels = 0;
  const auto close_enough = [&](double gap) {
    return best < kInf && best - proven <= gap * std::max(best, kTolerance);
  };
  double last_report = 0;
  const PassCheck check = [&](int64_t pass_labels) {
    const double seconds = stopwatch.Seconds();
    if (limits.on_progress && seconds - last_report > 0.1) {
      last_report = seconds;
      limits.on_progress({.best = best,
                          .bound = proven,
                          .nodes = labels + pass_labels,
                          .seconds = seconds});
    }
    if (limits.interrupted && limits.interrupted->load()) {
      return StoppedBy::kInterrupt;
    }
    if (seconds > limits.time_limit_s) return StoppedBy::kTime;
    if (labels + pass_labels > limits.node_limit) return StoppedBy::kNodes;
    return StoppedBy::kNothing;
  };

  for (const size_t width : kWidths) {
    if (close_enough(std::max(limits.gap, kTolerance))) break;
    const double threshold =
        best == kInf ? kInf
                     : best - std::max(limits.gap, kTolerance) *
                                  std::max(best, kTolerance);
    const PassResult pass = search.run(threshold, width, check);
    labels += pass.labels;
    if (pass.stopped_by != StoppedBy::kNothing) {
      solution.stopped_by = pass.stopped_by;
      break;
    }
    if (pass.units) {
      std::vector<ChosenUnit> units = search.to_units(*pass.units);
      const double ms = search.cost(units);
      if (ms < best) {
        best = ms;
        solution.units = std::move(units);
      }
    }
    // What is cheaper than the best plan was dropped; what was pruned is not
    // cheaper than the threshold.
    proven = std::max(proven, std::min({pass.units ? best : threshold, threshold,
                                        pass.least_dropped}));
    if (pass.least_dropped == kInf) break;
  }

  solution.nodes = labels;
  solution.seconds = stopwatch.Seconds();
  if (best == kInf) {
    solution.bound_ms = proven;
    if (solution.stopped_by == StoppedBy::kNothing) {
      solution.status = SearchStatus::kInfeasible;
      solution.bound_ms = kInf;
    }
    return solution;
  }
  solution.ms = best;
  if (close_enough(2 * kTolerance)) {
    solution.status = SearchStatus::kOptimal;
    solution.stopped_by = StoppedBy::kNothing;
    solution.bound_ms = best;
  } else {
    solution.status = SearchStatus::kFeasible;
    if (solution.stopped_by == StoppedBy::kNothing) {
      if (limits.gap <= kTolerance) {
        throw std::logic_error("SearchByPasses: the last pass proved nothing");
      }
      solution.stopped_by = StoppedBy::kGap;
    }
    solution.bound_ms = std::min(proven, best);
  }
  return solution;
}

}  // namespace acplan::problems
