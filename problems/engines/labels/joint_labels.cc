#include "problems/engines/labels/joint_labels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "problems/engines/labels/completion_bound.h"
#include "problems/engines/labels/joint_pass.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/engines/labels/small_groups.h"
#include "problems/model/joint_solution.h"
#include "solver/infinity.h"

// Four searches, of which the last answers.
//
// The bytes of small groups make nearly all labels, and hardly any difference.
// So the first search finds a plan that decides about large groups alone, in no
// time (Priced). The second one keeps its units and large groups and decides
// the small groups (SmallOnly), which gives a plan for the problem. The third
// one solves the relaxation that recomputes small groups for nothing (Free),
// which gives a bound. Often plan and bound meet, since large tensors come in
// multiples of each other; then the last search, which starts from both, has
// nothing to do. Otherwise it has a near plan and goes straight for the proof.
// The answer is exact no matter what the first three searches find: their plans
// are only starts, and the bound of a relaxation is a bound.

namespace acplan::problems {

using solver::kInfinity;
using solver::SearchLimits;
using solver::SearchStatus;

namespace {

// Limits that several searches share.
class SharedLimits {
 public:
  explicit SharedLimits(const SearchLimits& limits) : limits_(limits) {}

  void Spend(int64_t labels) { labels_ += labels; }
  int64_t labels() const { return labels_; }
  double Seconds() const { return stopwatch_.Seconds(); }

  SearchLimits All() const {
    SearchLimits all = Rest();
    if (limits_.on_progress) {
      all.on_progress = [this](solver::SearchProgress progress) {
        progress.nodes += labels_;
        limits_.on_progress(progress);
      };
    }
    return all;
  }

  // Returns limits for a search whose bounds are not bounds of the problem.
  SearchLimits Share() const {
    SearchLimits share = Rest();
    share.time_limit_s /= 3;
    share.node_limit = share.node_limit / 3 + 1;
    share.on_progress = nullptr;
    return share;
  }

 private:
  SearchLimits Rest() const {
    return solver::LeftOf(limits_, stopwatch_.Seconds(), labels_);
  }

  const SearchLimits& limits_;
  solver::Stopwatch stopwatch_;
  int64_t labels_ = 0;
};

// Returns the start with `units` if they cost less than its plan.
JointStart Offer(const JointProblem& problem, std::vector<ChosenUnit> units,
                 JointStart start) {
  if (start.known_units.empty() ||
      JointCost(problem, units) < JointCost(problem, start.known_units)) {
    start.known_units = std::move(units);
    start.known_is_near = true;
  }
  return start;
}

ModuleSolution SearchLargeGroupsFirst(
    const JointProblem& problem, const SearchLimits& limits,
    const std::vector<ChosenUnit>& known_units) {
  const SmallGroups groups(problem, PriceOfAByte(problem.relaxed));
  const std::optional<JointProblem> priced = groups.Priced();
  if (!priced)
    return SearchJointByPasses(problem, limits, {.known_units = known_units});

  SharedLimits shared_limits(limits);
  const auto search = [&](const JointProblem& part, const JointStart& start) {
    ModuleSolution solution =
        SearchJointByPasses(part, shared_limits.Share(), start);
    shared_limits.Spend(solution.nodes);
    return solution;
  };
  JointStart start{.known_units = known_units};
  const ModuleSolution large = search(*priced, {});
  if (!large.units.empty()) {
    const ModuleSolution small =
        search(groups.SmallOnly(*priced, large.units), {});
    start = Offer(problem, groups.FromPriced(large.units), std::move(start));
    if (!small.units.empty()) {
      start = Offer(problem, groups.Combined(large.units, small.units),
                    std::move(start));
    }
  }

  const JointProblem free = groups.Free();
  JointStart start_of_free{.known_is_near = true};
  for (const ChosenUnit& unit : large.units) {
    start_of_free.known_units.push_back(WithCheapPolicy(free, unit));
  }
  start.bound_ms = search(free, start_of_free).bound_ms;

  ModuleSolution solution =
      SearchJointByPasses(problem, shared_limits.All(), start);
  solution.nodes += shared_limits.labels();
  solution.seconds = shared_limits.Seconds();
  return solution;
}

// Returns a plan from the relaxation, its policies rounded up, for a search
// that a limit ended without one.
ModuleSolution RoundedUp(const JointProblem& problem, ModuleSolution solution) {
  constexpr double kSeconds = 1;
  const ModuleSolution relaxed =
      SolveByLabels(problem.relaxed, {.time_limit_s = kSeconds, .gap = 1});
  if (relaxed.units.empty()) return solution;
  for (ChosenUnit unit : relaxed.units) {
    const JointProblem::Policies& policies =
        problem.policies[problem.policies_of[unit.node]];
    if (!policies.points.empty()) {
      unit.counts =
          policies.LeastCounts(static_cast<int64_t>(std::ceil(unit.net_bytes)));
      unit.net_bytes = static_cast<double>(policies.BytesOf(unit.counts));
      solution.units.push_back(std::move(unit));
      continue;
    }
    auto bytes = static_cast<double>(policies.base_bytes);
    for (const GroupKind& kind : policies.kinds) {
      const double missing = std::max(0.0, unit.net_bytes - bytes);
      const double copies =
          std::min(static_cast<double>(kind.count),
                   std::ceil(missing / static_cast<double>(kind.bytes)));
      unit.counts.push_back(static_cast<int>(copies));
      bytes += copies * static_cast<double>(kind.bytes);
    }
    unit.net_bytes = bytes;
    solution.units.push_back(WithCheapPolicy(problem, std::move(unit)));
  }
  solution.status = SearchStatus::kFeasible;
  solution.ms = JointCost(problem, solution.units);
  solution.bound_ms =
      std::min(solution.ms, std::max(solution.bound_ms, relaxed.bound_ms));
  return solution;
}

}  // namespace

ModuleSolution SolveJointByLabels(const JointProblem& problem,
                                  const SearchLimits& limits,
                                  const std::vector<ChosenUnit>& known_units) {
  if (!problem.relaxed.prefix_structure) {
    throw std::invalid_argument(
        "SolveJointByLabels: the problem has no prefix structure");
  }
  return SolveJointWithScaledTimes(
      problem, limits,
      [&](const JointProblem& scaled, const SearchLimits& scaled_limits) {
        ModuleSolution solution =
            SearchLargeGroupsFirst(scaled, scaled_limits, known_units);
        if (solution.status == SearchStatus::kNoSolution &&
            limits.time_limit_s > 0 && scaled_limits.cut_off == kInfinity) {
          return RoundedUp(scaled, std::move(solution));
        }
        return solution;
      });
}

}  // namespace acplan::problems
