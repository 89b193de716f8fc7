#include "problems/engines/labels/label_passes.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace acplan::problems {

using solver::SearchStatus;

using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Proof tolerance, relative to the objective.
constexpr double kTolerance = 1e-9;

// Of the passes that look for a good plan, and of those that prove.
constexpr std::array<size_t, 2> kBeamWidths = {64, 1024};
constexpr std::array<size_t, 3> kProofWidths = {1 << 16, 1 << 20, 1 << 23};
// A best plan so near to the bound is taken for the optimum.
constexpr double kNear = 2e-3;
// The proof looks for plans within this share of what is between bound and
// best plan, then so many times as far.
constexpr double kFirstStep = 1.0 / 64;
constexpr double kStepGrowth = 3;

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

  double best = limits.cut_off;
  bool is_found = false;
  // A problem that needs no units has no candidates.
  if (!search.known.empty() && solution.columns > 0 &&
      search.cost(search.known) < best) {
    best = search.cost(search.known);
    solution.units = search.known;
    is_found = true;
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

  // Whether the search goes on. `is_complete`: nothing below the threshold was
  // dropped.
  bool is_complete = false;
  const auto run = [&](double threshold, size_t width) {
    const PassResult pass = search.run(threshold, width, check);
    labels += pass.labels;
    if (pass.stopped_by != StoppedBy::kNothing) {
      solution.stopped_by = pass.stopped_by;
      return false;
    }
    if (pass.units) {
      std::vector<ChosenUnit> units = search.improve(*pass.units);
      const double ms = search.cost(units);
      if (ms < best) {
        best = ms;
        solution.units = std::move(units);
        is_found = true;
      }
    }
    is_complete = pass.least_dropped == kInf;
    // What is cheaper than the best plan was dropped; what was pruned is not
    // cheaper than the threshold.
    proven = std::max(proven, std::min({pass.units ? best : threshold,
                                        threshold, pass.least_dropped}));
    return !close_enough(std::max(limits.gap, kTolerance)) &&
           !(is_complete && (pass.units || threshold == kInf));
  };
  const auto improves = [&] {
    return best == kInf ? kInf
                        : best - std::max(limits.gap, kTolerance) *
                                     std::max(best, kTolerance);
  };

  bool goes_on = !close_enough(std::max(limits.gap, kTolerance));
  const bool is_near =
      (search.known_is_near && best < kInf) || close_enough(kNear);
  for (const size_t width : kBeamWidths) {
    if (goes_on && !is_near) goes_on = run(improves(), width);
    if (is_complete) goes_on = false;
  }
  const double root = proven;
  double step = is_near ? 1 : kFirstStep;
  for (size_t width = 0; goes_on;) {
    const double threshold =
        std::min(improves(), root + step * std::max(0.0, best - root));
    goes_on = run(threshold, kProofWidths[width]);
    if (!is_complete) {
      ++width;
      if (goes_on && width == kProofWidths.size()) {
        solution.stopped_by = StoppedBy::kMemory;
        goes_on = false;
      }
    } else if (threshold >= improves()) {
      goes_on = false;
    } else {
      step *= kStepGrowth;
    }
  }

  solution.nodes = labels;
  solution.seconds = stopwatch.Seconds();
  if (!is_found) {
    solution.bound_ms = std::min(proven, limits.cut_off);
    if (solution.stopped_by == StoppedBy::kNothing) {
      if (limits.cut_off == kInf) {
        solution.bound_ms = kInf;
        solution.status = SearchStatus::kInfeasible;
      } else if (close_enough(2 * kTolerance)) {
        solution.bound_ms = limits.cut_off;
      } else {
        solution.stopped_by = StoppedBy::kGap;
      }
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
