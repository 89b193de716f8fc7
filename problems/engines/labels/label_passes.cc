#include "problems/engines/labels/label_passes.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "solver/infinity.h"

// This explains what a search has proven at any time, and when it ends.
//
// `best` is the cost of the best plan, or the cut-off; `proven` a cost below
// which there is no plan. A pass looks for plans below a threshold and reports
// the cheapest that it found, and a lower bound on the plans that it dropped
// for its width. Plans cheaper than the reported one were dropped; pruned plans
// are not cheaper than the threshold. So after a complete run of a pass no plan
// costs less than the least of: the reported plan (or the threshold, if there
// is none), the threshold, and the bound on the dropped plans. A pass that was
// stopped proves nothing, though the passes before it may have found a plan.
//
// A complete pass, one that dropped nothing, is final if it found a plan: no
// plan below its threshold costs less. If it found none, its threshold is
// proven. So thresholds that move away from the bound meet the optimum or the
// best plan after finitely many steps. A width too small for a threshold is
// replaced by the next one; after the last width, memory is the limit that
// stops the search.

namespace acplan::problems {

using solver::kInfinity;
using solver::SearchLimits;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

// Proof tolerance, relative to the objective.
constexpr double kTolerance = 1e-9;

// Widths of the passes that look for a good plan, and of those that prove.
constexpr std::array<size_t, 2> kBeamWidths = {64, 1024};
constexpr std::array<size_t, 3> kProofWidths = {1 << 16, 1 << 20, 1 << 23};
// A best plan this near to the bound is taken for the optimum.
constexpr double kNear = 2e-3;
// The proof looks for plans within this share of the distance between bound and
// best plan, then so many times as far.
constexpr double kFirstStep = 1.0 / 64;
constexpr double kStepGrowth = 3;
constexpr double kSecondsAReport = 0.1;

// The limits of a search, checked from time to time while a pass runs.
class Guard {
 public:
  explicit Guard(const SearchLimits& limits) : limits_(limits) {}

  double Seconds() const { return stopwatch_.Seconds(); }

  // Returns the limit that is reached, if any. `progress` has no time yet.
  StoppedBy Check(solver::SearchProgress progress) {
    progress.seconds = stopwatch_.Seconds();
    if (limits_.on_progress &&
        progress.seconds - last_report_ > kSecondsAReport) {
      last_report_ = progress.seconds;
      limits_.on_progress(progress);
    }
    if (limits_.interrupted && limits_.interrupted->load()) {
      return StoppedBy::kInterrupt;
    }
    if (progress.seconds > limits_.time_limit_s) return StoppedBy::kTime;
    if (progress.nodes > limits_.node_limit) return StoppedBy::kNodes;
    return StoppedBy::kNothing;
  }

 private:
  const SearchLimits& limits_;
  solver::Stopwatch stopwatch_;
  double last_report_ = 0;
};

// The best plan so far, and the proven bound on all others.
struct State {
  double best = kInfinity;
  double proven = 0;
  std::vector<ChosenUnit> units = {};
  bool is_found = false;
  int64_t labels = 0;
  StoppedBy stopped_by = StoppedBy::kNothing;

  bool IsWithin(double gap) const {
    return best < kInfinity &&
           best - proven <= gap * std::max(best, kTolerance);
  }
};

class PassSearch {
 public:
  PassSearch(const SearchLimits& limits, const LabelSearch& search, State state)
      : gap_(std::max(limits.gap, kTolerance)),
        guard_(limits),
        search_(search),
        state_(std::move(state)),
        goes_on_(!state_.IsWithin(gap_)) {}

  // Looks for a good plan, with few labels.
  void FindGood() {
    for (const size_t width : kBeamWidths) {
      if (!goes_on_) return;
      const bool is_complete = Run(CostOfInterest(), width);
      if (is_complete) goes_on_ = false;
    }
  }

  // Moves the threshold from the bound to the best plan, beginning with `step`
  // of the distance between them.
  void Prove(double step) {
    const double root = state_.proven;
    for (size_t width = 0; goes_on_;) {
      const double threshold = std::min(
          CostOfInterest(), root + step * std::max(0.0, state_.best - root));
      if (!Run(threshold, kProofWidths[width])) {
        ++width;
        if (goes_on_ && width == kProofWidths.size()) {
          state_.stopped_by = StoppedBy::kMemory;
          goes_on_ = false;
        }
      } else if (threshold >= CostOfInterest()) {
        goes_on_ = false;
      } else {
        step *= kStepGrowth;
      }
    }
  }

  // Returns whether the best plan is probably nearly optimal.
  bool IsNear() const {
    return (search_.known_is_near && state_.best < kInfinity) ||
           state_.IsWithin(kNear);
  }

  State TakeState() { return std::move(state_); }
  double Seconds() const { return guard_.Seconds(); }

 private:
  // Returns the cost below which a plan is better than the best one by more
  // than the gap.
  double CostOfInterest() const {
    return state_.best == kInfinity
               ? kInfinity
               : state_.best - gap_ * std::max(state_.best, kTolerance);
  }

  // Runs a pass, and decides whether the search goes on. Returns whether the
  // pass was complete.
  bool Run(double threshold, size_t width) {
    const PassResult pass =
        search_.run(threshold, width, [this](int64_t labels) {
          return guard_.Check({.best = state_.best,
                               .bound = state_.proven,
                               .nodes = state_.labels + labels});
        });
    state_.labels += pass.labels;
    if (pass.stopped_by != StoppedBy::kNothing) {
      state_.stopped_by = pass.stopped_by;
      goes_on_ = false;
      return false;
    }
    if (pass.units) Offer(*pass.units);
    const bool is_complete = pass.least_dropped == kInfinity;
    state_.proven =
        std::max(state_.proven, std::min({pass.units ? state_.best : threshold,
                                          threshold, pass.least_dropped}));
    goes_on_ = !state_.IsWithin(gap_) &&
               !(is_complete && (pass.units || threshold == kInfinity));
    return is_complete;
  }

  void Offer(std::vector<ChosenUnit> units) {
    units = search_.improve(std::move(units));
    const double ms = search_.cost(units);
    if (!(ms < state_.best)) return;
    state_.best = ms;
    state_.units = std::move(units);
    state_.is_found = true;
  }

  double gap_;
  Guard guard_;
  const LabelSearch& search_;
  State state_;
  bool goes_on_;
};

ModuleSolution WithSizes(const ModuleProblem& problem) {
  ModuleSolution solution;
  solution.engine = "labels";
  solution.columns = std::ranges::count_if(
      problem.nodes, [](const auto& node) { return !node.curve.empty(); });
  solution.rows = std::ranges::count_if(problem.nodes, [&](const auto& node) {
    return node.time >= 0 && node.base_bytes > problem.budget_bytes;
  });
  return solution;
}

// Returns the answer of a search that found no plan.
ModuleSolution WithoutPlan(const State& state, double cut_off,
                           ModuleSolution solution) {
  solution.bound_ms = std::min(state.proven, cut_off);
  if (solution.stopped_by != StoppedBy::kNothing) return solution;
  if (cut_off == kInfinity) {
    solution.bound_ms = kInfinity;
    solution.status = SearchStatus::kInfeasible;
  } else if (state.IsWithin(2 * kTolerance)) {
    solution.bound_ms = cut_off;
  } else {
    solution.stopped_by = StoppedBy::kGap;
  }
  return solution;
}

ModuleSolution WithPlan(State state, double gap, ModuleSolution solution) {
  solution.units = std::move(state.units);
  solution.ms = state.best;
  if (state.IsWithin(2 * kTolerance)) {
    solution.status = SearchStatus::kOptimal;
    solution.stopped_by = StoppedBy::kNothing;
    solution.bound_ms = state.best;
    return solution;
  }
  solution.status = SearchStatus::kFeasible;
  if (solution.stopped_by == StoppedBy::kNothing) {
    if (gap <= kTolerance) {
      throw std::logic_error("SearchByPasses: the last pass proved nothing");
    }
    solution.stopped_by = StoppedBy::kGap;
  }
  solution.bound_ms = std::min(state.proven, state.best);
  return solution;
}

}  // namespace

ModuleSolution SearchByPasses(const ModuleProblem& problem, double root_bound,
                              const SearchLimits& limits,
                              const LabelSearch& search) {
  ModuleSolution solution = WithSizes(problem);
  if (problem.fixed_bytes > problem.budget_bytes || root_bound == kInfinity) {
    solution.status = SearchStatus::kInfeasible;
    solution.bound_ms = kInfinity;
    return solution;
  }
  State start{.best = limits.cut_off, .proven = std::max(0.0, root_bound)};
  // A problem that needs no units has no candidates.
  if (!search.known_units.empty() && solution.columns > 0 &&
      search.cost(search.known_units) < start.best) {
    start.best = search.cost(search.known_units);
    start.units = search.known_units;
    start.is_found = true;
  }

  PassSearch passes(limits, search, std::move(start));
  const bool is_near = passes.IsNear();
  if (!is_near) passes.FindGood();
  passes.Prove(is_near ? 1 : kFirstStep);

  solution.seconds = passes.Seconds();
  State state = passes.TakeState();
  solution.nodes = state.labels;
  solution.stopped_by = state.stopped_by;
  return state.is_found ? WithPlan(std::move(state), limits.gap, solution)
                        : WithoutPlan(state, limits.cut_off, solution);
}

}  // namespace acplan::problems
