#include "problems/trace/trace_least_budget.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "graph/trace/allocation.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/trace/relaxation/branching.h"
#include "problems/trace/relaxation/limit_watch.h"
#include "problems/trace/relaxation/near_plans.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;
using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr int64_t kMostParts = 20'000;
// Relaxations of a part before it is split.
constexpr int kRounds = 4;
// A search for a plan of a relaxation, which need not be the cheapest, makes as many.
constexpr int64_t kLabelsAPlan = 200'000;
// Peaks that are looked for near a plan of a relaxation, until so many are not found,
// and plans on the way to one.
constexpr int kMostMissed = 6;
constexpr int kPlansAPeak = 24;
// The time in seconds that the first part may take if the limit is shorter.
constexpr double kSecondsOfFirst = .1;

// The least budget of a relaxation in whole allocations; nothing where it is above
// `most_bytes` anyway.
std::optional<int64_t> LeastOf(const TraceRelaxation& relaxation,
                               int64_t most_bytes) {
  const ModuleProblem& relaxed = relaxation.joint.relaxed;
  if (relaxed.fixed_bytes > static_cast<double>(most_bytes)) {
    return std::nullopt;
  }
  return graph::AllocatedBytes(FindMinimumBudget(relaxed).bytes);
}

class LeastBudgetSearch {
 public:
  LeastBudgetSearch(const TraceProblem& problem, const SearchLimits& limits,
                    int64_t enough_bytes)
      : problem_(problem), watch_(limits), enough_bytes_(enough_bytes) {}

  TraceMinimum Run(const std::vector<CheckpointedModule>& known_modules) {
    // The bound of a search that stops before it finds one.
    parts_.SetBoundAtHand(0);
    Try({});
    if (!known_modules.empty()) Try(known_modules);
    MinimumBudget& budget = answer_.budget;
    try {
      const solver::StopScope scope(
          std::max(watch_.limits().time_limit_s, kSecondsOfFirst),
          watch_.limits().interrupted);
      Search();
    } catch (const solver::Stopped&) {
      if (!IsStopped()) budget.stopped_by = StoppedBy::kTime;
      if (known_modules.empty()) TryPlain();
    }
    budget.bound_bytes = Bound();
    budget.proven = budget.bound_bytes == budget.bytes;
    if (budget.proven) budget.stopped_by = StoppedBy::kNothing;
    return std::move(answer_);
  }

 private:
  void Search() {
    solver::StopIfDue();
    first_ = FirstWitnesses(problem_);
    // The first takes a moment, and says something whatever the limits.
    Branch({}, /*lowers=*/true);
    parts_.LetGo();
    for (int64_t parts = 1; !parts_.empty() && !IsStopped(); ++parts) {
      if (parts == kMostParts) {
        answer_.budget.stopped_by = StoppedBy::kNodes;
        break;
      }
      // Less and less often, as each takes as long as some parts.
      Branch(parts_.TakeLeast(),
             /*lowers=*/std::has_single_bit(static_cast<uint64_t>(parts)));
      parts_.LetGo();
    }
  }

  void TryPlain() {
    TryPlainPlans(problem_, [&](const std::vector<CheckpointedModule>& units) {
      Try(units);
      return enough_bytes_ > 0 && Best() <= enough_bytes_;
    });
  }

  // Only plans that need less are of interest.
  int64_t Best() const {
    return LesserBytes(answer_.budget.bytes, watch_.limits().cut_off);
  }

  // No plan needs less.
  int64_t Bound() const {
    return static_cast<int64_t>(
        std::min(parts_.Bound(), static_cast<double>(Best())));
  }

  bool IsStopped() {
    if (Best() <= enough_bytes_ || Bound() >= Best()) return true;
    if (enough_bytes_ > 0 && Bound() > enough_bytes_) return true;
    const StoppedBy limit = watch_.LimitReached(static_cast<double>(Best()),
                                                static_cast<double>(Bound()));
    if (limit != StoppedBy::kNothing) answer_.budget.stopped_by = limit;
    return answer_.budget.stopped_by != StoppedBy::kNothing;
  }

  std::optional<Simulation> Try(
      const std::vector<CheckpointedModule>& modules) {
    std::optional<Simulation> use = SimulatedUse(problem_, modules);
    if (!use) return use;
    const bool is_first = modules.empty() && !is_any_tried_;
    is_any_tried_ = true;
    if (is_first || (use->peak_bytes < answer_.budget.bytes &&
                     KeepsMaxUnits(problem_, modules))) {
      answer_.budget.bytes = use->peak_bytes;
      answer_.modules = modules;
    }
    return use;
  }

  // A plan of the relaxation within a budget that it just meets.
  std::vector<ChosenUnit> UnitsWithin(JointProblem& joint,
                                      int64_t budget_bytes) {
    joint.relaxed.budget_bytes = static_cast<double>(budget_bytes);
    const ModuleSolution solution =
        SolveJointByLabels(joint, {.gap = 1,
                                   .node_limit = kLabelsAPlan,
                                   .interrupted = watch_.limits().interrupted});
    watch_.Count(solution);
    return solution.units;
  }

  // Looks for a plan of this peak near one that needs more: records that the
  // relaxation puts too low are raised to what the simulation shows.
  bool IsReached(RelaxedPlan plan, int64_t peak_bytes) {
    for (int k = 0; k < kPlansAPeak && plan.use && !IsStopped(); ++k) {
      if (plan.use->peak_bytes <= peak_bytes) break;
      plan.relaxation = WithRaisedRecords(problem_, plan, peak_bytes);
      plan.units = UnitsWithin(plan.relaxation.joint, peak_bytes);
      if (plan.units.empty()) break;
      plan.modules = CheckpointedModules(problem_, plan.relaxation, plan.units);
      plan.use = Try(plan.modules);
    }
    return Best() <= peak_bytes;
  }

  // Halves what lies between the bound and the best peak as long as plans near this
  // one are found there.
  void Lower(const RelaxedPlan& plan) {
    int64_t missed_bytes = std::max(Bound(), enough_bytes_ - 1);
    for (int missed = 0; missed < kMostMissed && !IsStopped();) {
      const int64_t peak_bytes =
          graph::WholeAllocations(missed_bytes + (Best() - missed_bytes) / 2);
      if (peak_bytes <= missed_bytes) break;
      if (IsReached(plan, peak_bytes)) continue;
      missed_bytes = peak_bytes;
      ++missed;
    }
  }

  // Improves the bound of a part, and splits it where that does not settle it. As
  // bounds and plans take only a walk, witnesses change without being blended
  // where the bound rises.
  void Branch(TracePart part, bool lowers) {
    std::optional<Decision> decision;
    double weight = 1;
    int64_t best_bound = -1;
    for (int round = 0; round < kRounds; ++round) {
      const Witnesses witnesses =
          Blend(first_, part.witnesses, part.next, weight);
      RelaxedPlan plan = {
          .relaxation = Relax(problem_, witnesses, part.decisions,
                              std::numeric_limits<double>::infinity(), memo_)};
      const std::optional<int64_t> least = LeastOf(plan.relaxation, Best());
      if (!least || *least >= Best()) return;
      part.bound = std::max(part.bound, static_cast<double>(*least));
      const auto bound = static_cast<int64_t>(part.bound);
      parts_.SetBoundAtHand(part.bound);
      plan.units = UnitsWithin(plan.relaxation.joint, *least);
      plan.modules = CheckpointedModules(problem_, plan.relaxation, plan.units);
      plan.use = Try(plan.modules);
      if (bound >= Best()) return;
      if (lowers && round == 0) Lower(plan);
      if (bound >= Best()) return;
      weight /= 2;
      if (*least > best_bound) {
        best_bound = *least;
        Split split = SplitOn(problem_, part, plan, witnesses, bound);
        decision = split.decision;
        part.witnesses = ChangesOf(first_, witnesses);
        part.next = ChangesOf(first_, split.next);
        weight = 1;
      }
      if (!decision || part.next == part.witnesses || IsStopped()) break;
    }
    if (!decision) {
      Try(OnlyPlanOf(problem_, part));
      return;
    }
    parts_.AddHalves(part, *decision);
  }

  const TraceProblem& problem_;
  Witnesses first_;
  PolicyMemo memo_ = PolicyMemo(problem_);
  LimitWatch watch_;
  const int64_t enough_bytes_;
  SearchParts parts_;
  bool is_any_tried_ = false;
  TraceMinimum answer_;
};

}  // namespace

TraceMinimum FindLeastPlan(
    const TraceProblem& problem, const SearchLimits& limits,
    int64_t enough_bytes,
    const std::vector<CheckpointedModule>& known_modules) {
  return LeastBudgetSearch(problem, limits, enough_bytes).Run(known_modules);
}

}  // namespace acplan::problems
