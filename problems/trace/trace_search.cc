#include "problems/trace/trace_search.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "graph/trace/allocation.h"
#include "problems/trace/relaxation/branching.h"
#include "problems/trace/relaxation/limit_watch.h"
#include "problems/trace/relaxation/near_plans.h"
#include "problems/trace/relaxation/relaxation_solver.h"
#include "problems/trace/trace_least_budget.h"
#include "solver/stop.h"

// How a trace problem is solved: branch and bound over decisions, in which each
// part improves its own relaxation before it is split.
//
// A part holds the plans that keep its decisions. Its relaxation (relaxation.h)
// depends on the choice of witnesses, and every choice gives a lower bound. So a
// part is treated in rounds:
// 1. Solve the relaxation: a bound for the part, and a plan, which is simulated.
//    If the bound reaches the best plan, the part is closed.
// 2. If the plan breaks the budget, storages that are live there and that the
//    witnesses do not count get witnesses that do (FindMiscounted).
// 3. The next choice is a blend of both, with half the weight on the new ones: a
//    convex combination, because one plan's witnesses alone may count less where
//    another plan holds. When the relaxation's optimum rises, the blend becomes the
//    current choice, with targets of its own; otherwise the weight is halved. A
//    new part starts with all the weight on the targets that it inherited.
// After a few rounds the part is split on a decision (branching.h). Both halves
// inherit bound and witnesses. The part with the least bound is next.
//
// A relaxation is solved no more exactly than is of use: to a tenth of what lies
// between the part's bound and the best plan, with few labels. A plan that breaks
// the budget does so whether it is the cheapest or nearly so, and then it is the
// witnesses that have to change. Only where nothing cheaper than the best plan
// turns up that way is a relaxation solved to its optimum.
//
// Plans come first, whatever the proof takes: the relaxation's, with records that
// it puts too low raised to what the simulation shows, until it fits; where none
// fits, the plan of the least budget, which decides whether there is one; each made
// cheaper, a unit or a group at a time (near_plans.h).
//
// Invariant. Every plan within the budget is in an open part, or in one that was
// closed and costs no less than that part's bound, or was simulated.
//
// Why it is exact. Splitting loses no plan, and a half inherits a bound that holds
// for both. SplitOn finds a decision as long as a part may have more than one plan;
// a part with one plan is settled by simulating it. So the search ends, and then the
// best plan is optimal. At any time no plan costs less than the least bound of all
// parts.

namespace acplan::problems {

using graph::CheckpointedModule;
using solver::SearchLimits;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

// Limits of the searches for a plan in less than the least one that is known.
constexpr int kMostSearches = 100;
constexpr int64_t kLabelsOfLess = 1'000'000;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kNoLimit = RelaxationSolver::kNoLimit;

// After so many parts a search ends, unless all of them were little work: so few
// labels were made, and so few operators simulated. Parts that are open take memory.
constexpr int64_t kMostParts = 1000;
constexpr int64_t kFewLabels = 10'000'000;
constexpr int64_t kFewOperators = 16'000'000;
constexpr int64_t kMostSmallParts = 200'000;
// Relaxations of a part with plans that break the budget before it is split: at
// first, and where another decision is not needed for the next.
constexpr int kRounds = 3;
constexpr int kMostRounds = 8;
// A search that makes as many takes long.
constexpr int64_t kManyLabels = 1'000'000;
// These say how exactly relaxations are solved at first.
constexpr int64_t kLabelsOfParts = 100'000;
constexpr double kShareOfGap = .1;
constexpr double kLeastGapOfParts = 5e-4;
constexpr double kMostGapOfParts = .02;
// Searches for a plan near one that does not fit: so many, and where parts are little
// work one in so many parts.
constexpr int kMostRepairs = 24;
constexpr int64_t kPartsARepair = 8;
constexpr int kRepairRounds = 8;
constexpr int kFirstRepairRounds = 40;
constexpr double kGapOfRepairs = 1e-3;
constexpr double kGapOfFirst = .02;
constexpr double kGapOfPolished = .01;

TraceSolution SolutionOf(const BestPlan& best, const LimitWatch& watch,
                         double bound_ms, StoppedBy stopped_by) {
  const SearchEffort& effort = watch.effort();
  TraceSolution solution = {.stopped_by = stopped_by,
                            .modules = best.modules(),
                            .use = best.use(),
                            .bound_ms = bound_ms,
                            .nodes = effort.labels,
                            .rows = effort.rows,
                            .columns = effort.columns,
                            .seconds = watch.Seconds(),
                            .near = best.NearPlans()};
  if (best.is_found()) {
    solution.status = best.IsAsGoodAs(bound_ms) ? SearchStatus::kOptimal
                                                : SearchStatus::kFeasible;
  } else if (bound_ms == kInf) {
    solution.status = SearchStatus::kInfeasible;
  } else if (best.IsAsGoodAs(bound_ms)) {
    // Nothing costs less than the cut-off.
    solution.stopped_by = StoppedBy::kNothing;
    return solution;
  }
  if (solution.status == SearchStatus::kOptimal ||
      solution.status == SearchStatus::kInfeasible) {
    solution.stopped_by = StoppedBy::kNothing;
  } else if (stopped_by == StoppedBy::kNothing) {
    solution.stopped_by =
        effort.is_memory_full ? StoppedBy::kMemory : StoppedBy::kUnproven;
  }
  return solution;
}

class TraceSearch {
 public:
  TraceSearch(const TraceProblem& problem, int64_t budget_bytes,
              const SearchLimits& limits, const SearchSeries& series)
      : watch_(limits),
        best_(problem, budget_bytes, limits.cut_off, series.near_bytes),
        solver_(
            best_, watch_, [this] { return Bound(); }, series.memo) {}

  TraceSolution Run(const std::vector<CheckpointedModule>& known_modules) {
    // The bound of a search that stops before it finds one.
    parts_.SetBoundAtHand(0);
    best_.Try({});
    if (!known_modules.empty()) best_.Try(known_modules);
    try {
      const solver::StopScope scope(watch_.limits().time_limit_s,
                                    watch_.limits().interrupted);
      Search();
    } catch (const solver::Stopped&) {
      if (!IsStopped()) stopped_by_ = StoppedBy::kTime;
    }
    if (stopped_by_ != StoppedBy::kNothing) FindPlainPlan(best_);
    return SolutionOf(best_, watch_, Bound(), stopped_by_);
  }

 private:
  void Search() {
    solver::StopIfDue();
    TracePart all;
    if (!best_.IsAsGoodAs(0)) {
      first_ = FirstWitnesses(best_.problem());
      all.bound = FindFirst();
    }
    parts_.LetGo();
    parts_.Add(std::move(all));
    for (; parts_taken_ < watch_.limits().part_limit &&
           (parts_taken_ < kMostParts || IsSmall()) && !parts_.empty() &&
           !IsStopped();
         ++parts_taken_) {
      TracePart part = parts_.TakeLeast();
      if (best_.IsAsGoodAs(part.bound)) {
        parts_.Close(part.bound);
      } else {
        Branch(std::move(part));
      }
      parts_.LetGo();
    }
    if (!parts_.empty() && stopped_by_ == StoppedBy::kNothing) {
      stopped_by_ = StoppedBy::kNodes;
    }
  }

  // Returns whether parts so far were little work.
  bool IsSmall() const {
    const int64_t operators = std::ssize(best_.problem().trace->operators);
    return watch_.effort().labels < kFewLabels &&
           parts_taken_ < kMostSmallParts &&
           parts_taken_ * operators < kFewOperators;
  }

  // Finds a plan in little time, whatever the proof takes. Returns a bound.
  double FindFirst() {
    RelaxedPlan plan = {.relaxation = Relax(best_.problem(), first_, {},
                                            best_.Ms(), solver_.memo())};
    const ModuleSolution relaxed = solver_.Solve(
        plan.relaxation.joint, std::max(watch_.limits().gap, kGapOfFirst));
    parts_.SetBoundAtHand(relaxed.bound_ms);
    if (!relaxed.units.empty()) {
      plan = WithUnits(std::move(plan), relaxed.units);
      if (BreaksBudget(plan)) Repair(std::move(plan));
    }
    if (relaxed.status == SearchStatus::kInfeasible) return kInf;
    if (!best_.HasRival() && !IsStopped() && !FindAny()) return kInf;
    if (!best_.IsNear(relaxed.bound_ms, kGapOfPolished)) {
      Polish(best_, [&] { return IsStopped(); });
    }
    return relaxed.bound_ms;
  }

  // Tries the plan of the least budget. Returns whether any plan may fit.
  bool FindAny() {
    SearchLimits remaining = watch_.RemainingLimits();
    remaining.gap = 0;
    const TraceMinimum least = FindLeastPlan(
        best_.problem(), remaining, std::max<int64_t>(best_.budget_bytes(), 1));
    best_.Try(least.modules);
    return least.budget.bound_bytes <= best_.budget_bytes();
  }

  // No plan recomputes less.
  double Bound() const { return std::min(parts_.Bound(), best_.Ms()); }

  bool IsStopped() {
    const StoppedBy limit = watch_.LimitReached(best_.Ms(), Bound());
    if (limit != StoppedBy::kNothing) stopped_by_ = limit;
    return stopped_by_ != StoppedBy::kNothing;
  }

  // Returns the plan with other units of its relaxation, simulated.
  RelaxedPlan WithUnits(RelaxedPlan plan, std::vector<ChosenUnit> units) {
    plan.units = std::move(units);
    plan.modules =
        CheckpointedModules(best_.problem(), plan.relaxation, plan.units);
    plan.use = best_.Try(plan.modules);
    return plan;
  }

  bool BreaksBudget(const RelaxedPlan& plan) const {
    return plan.use && plan.use->peak_bytes > best_.budget_bytes();
  }

  // Returns how exactly to solve the relaxations of a part at first: no more exactly
  // than the bound is near to the best plan.
  double GapFor(const TracePart& part) const {
    const double gap = kShareOfGap * (1 - part.bound / best_.Ms());
    return gap < kLeastGapOfParts ? 0 : std::min(gap, kMostGapOfParts);
  }

  bool IsDone(const TracePart& part) {
    return best_.IsAsGoodAs(part.bound) || IsStopped();
  }

  // Improves the bound of a part, and splits it where that does not settle it.
  void Branch(TracePart part) {
    Split split;
    double best_ms = -kInf;  // of relaxations
    double weight = 1;       // of what is to be tried
    double gap = GapFor(part);
    for (int round = 0; round < (split.decision ? kRounds : kMostRounds);) {
      const Witnesses witnesses =
          Blend(first_, part.witnesses, part.next, weight);
      RelaxedPlan plan = {.relaxation =
                              Relax(best_.problem(), witnesses, part.decisions,
                                    best_.Ms(), solver_.memo())};
      const ModuleSolution relaxed = solver_.SolveSharply(
          plan.relaxation, gap, gap > 0 ? kLabelsOfParts : kNoLimit);
      if (relaxed.status == SearchStatus::kInfeasible) return;
      part.bound = std::max(part.bound, relaxed.bound_ms);
      parts_.SetBoundAtHand(part.bound);
      if (best_.IsAsGoodAs(part.bound)) return parts_.Close(part.bound);
      const bool is_found = relaxed.status != SearchStatus::kNoSolution;
      if (is_found) plan = WithUnits(std::move(plan), relaxed.units);
      if (IsDone(part)) return parts_.Close(part.bound);
      // Nothing is much better, or the plan is better than the best one known.
      if (gap > 0 && (!is_found || !BreaksBudget(plan))) {
        gap = 0;
        continue;
      }
      if (!is_found) return parts_.Close(part.bound);  // a limit
      ++round;
      weight /= 2;
      if (relaxed.ms > best_ms || !split.decision) {
        best_ms = relaxed.ms;
        split = SplitOn(best_.problem(), part, plan, witnesses,
                        best_.budget_bytes());
        part.witnesses = ChangesOf(first_, witnesses);
        part.next = ChangesOf(first_, split.next);
        weight = .5;
      }
      if (BreaksBudget(plan) && !best_.IsNear(relaxed.ms, kGapOfRepairs)) {
        Repair(std::move(plan));
      }
      if (IsDone(part)) return parts_.Close(part.bound);
      if (part.next == part.witnesses || relaxed.nodes > kManyLabels) break;
    }
    if (split.decision) return parts_.AddHalves(part, *split.decision);
    best_.Try(OnlyPlanOf(best_.problem(), part));
  }

  // Looks for a plan within the budget near one that is not: records that the
  // relaxation puts too low are raised to what the simulation shows, until the
  // plan fits.
  void Repair(RelaxedPlan plan) {
    const int rounds = best_.is_found() ? kRepairRounds : kFirstRepairRounds;
    if (++repairs_ > kMostRepairs &&
        !(IsSmall() && parts_taken_ % kPartsARepair == 0)) {
      return;
    }
    for (int round = 0; round < rounds && !IsStopped(); ++round) {
      plan.relaxation =
          WithRaisedRecords(best_.problem(), plan, best_.budget_bytes());
      const ModuleSolution next = solver_.Solve(
          plan.relaxation.joint,
          std::max(watch_.limits().gap,
                   best_.is_found() ? kGapOfRepairs : kGapOfFirst));
      if (next.units.empty()) return;
      plan = WithUnits(std::move(plan), next.units);
      if (!BreaksBudget(plan)) return;
    }
  }

  Witnesses first_;
  LimitWatch watch_;
  BestPlan best_;
  SearchParts parts_;
  RelaxationSolver solver_;
  StoppedBy stopped_by_ = StoppedBy::kNothing;
  int64_t parts_taken_ = 0;
  int repairs_ = 0;
};

}  // namespace

TraceSolution SolveTraceProblem(
    const TraceProblem& problem, int64_t budget_bytes,
    const SearchLimits& limits,
    const std::vector<CheckpointedModule>& known_modules,
    const SearchSeries& series) {
  // Live bytes come in units of an allocation.
  return TraceSearch(problem, graph::WholeAllocations(budget_bytes), limits,
                     series)
      .Run(known_modules);
}

TraceMinimum SearchLeastPlan(
    const TraceProblem& problem, const SearchLimits& limits,
    const std::vector<CheckpointedModule>& known_modules) {
  const solver::Stopwatch stopwatch;
  TraceMinimum least = FindLeastPlan(problem, limits, 0, known_modules);
  MinimumBudget& budget = least.budget;
  for (int search = 0; search < kMostSearches && !budget.proven &&
                       budget.stopped_by == StoppedBy::kNodes;
       ++search) {
    const int64_t least_bytes = LesserBytes(budget.bytes, limits.cut_off);
    SearchLimits remaining = solver::LeftOf(limits, stopwatch.Seconds());
    remaining.gap = 1;
    remaining.cut_off = kInf;
    remaining.node_limit = std::min(remaining.node_limit, kLabelsOfLess);
    remaining.on_progress = nullptr;
    TraceSolution solution =
        SolveTraceProblem(problem, least_bytes - 1, remaining);
    if (solution.status == SearchStatus::kNoSolution) break;
    if (solution.status == SearchStatus::kInfeasible) {
      budget.bound_bytes = least_bytes;
      budget.proven = budget.bytes == least_bytes;
      budget.stopped_by = StoppedBy::kNothing;
    } else {
      budget.bytes = solution.use.peak_bytes;
      least.modules = std::move(solution.modules);
    }
  }
  return least;
}

}  // namespace acplan::problems
