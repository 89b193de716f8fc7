#include "problems/trace/trace_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/plan/trace_memory.h"
#include "problems/trace/trace_least_budget.h"
#include "problems/trace/trace_parts.h"

namespace acplan::problems {

using solver::SearchStatus;

using graph::CheckpointedModule;
using graph::Simulation;
using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

constexpr int64_t kMostParts = 1000;
// Relaxations of a part with plans that break the budget before it is split: at
// first, and where another decision is not needed for the next.
constexpr int kRounds = 3;
constexpr int kMostRounds = 8;
// A search that makes as many takes long.
constexpr int64_t kManyLabels = 1'000'000;
// How exactly relaxations are solved at first.
constexpr int64_t kLabelsOfParts = 100'000;
constexpr double kShareOfGap = .1;
constexpr double kLeastGapOfParts = 5e-4;
constexpr double kMostGapOfParts = .02;
// Searches for a plan near one that does not fit.
constexpr int kMostRepairs = 24;
constexpr int kRepairRounds = 8;
constexpr int kFirstRepairRounds = 40;
constexpr double kGapOfRepairs = 1e-3;
constexpr double kGapOfFirst = .02;
// Simulations that try to make a plan cheaper.
constexpr int kMostPolishing = 500;
constexpr double kGapOfPolished = .01;

class Search {
 public:
  Search(const TraceProblem& problem, int64_t budget_bytes,
         const SearchLimits& limits)
      : problem_(problem), budget_bytes_(budget_bytes), limits_(limits) {}

  TraceSolution Run(const std::vector<CheckpointedModule>& known) {
    Try({});
    if (!known.empty()) Try(known);
    TracePart all;
    if (!IsSettled(0)) all.bound = FindFirst();
    current_bound_ms_ = kInf;
    if (!is_infeasible_) open_.push_back(std::move(all));
    int64_t parts = 0;
    for (; parts < kMostParts && !open_.empty() && !IsStopped(); ++parts) {
      const auto least = std::ranges::min_element(open_, {}, &TracePart::bound);
      TracePart part = std::move(*least);
      open_.erase(least);
      if (IsSettled(part.bound)) {
        Close(part.bound);
      } else {
        current_bound_ms_ = part.bound;
        Branch(std::move(part));
        current_bound_ms_ = kInf;
      }
    }
    if (!open_.empty() && result_.stopped_by == StoppedBy::kNothing) {
      result_.stopped_by = StoppedBy::kNodes;
    }
    Conclude();
    return std::move(result_);
  }

 private:
  // A plan in little time, whatever the proof takes. Returns a bound.
  double FindFirst() {
    RelaxedPlan plan = {.relaxation = Relax(problem_, first_)};
    const ModuleSolution relaxed =
        Solve(plan.relaxation.joint, std::max(limits_.gap, kGapOfFirst));
    current_bound_ms_ = relaxed.bound_ms;
    if (!relaxed.units.empty()) {
      TryPlan(plan, relaxed.units);
      if (BreaksBudget(plan)) Repair(std::move(plan));
    }
    if (relaxed.status == SearchStatus::kInfeasible) return kInf;
    if (BestMs() == kInf && !IsStopped()) FindAny();
    if (!IsNear(current_bound_ms_, kGapOfPolished)) Polish();
    return relaxed.bound_ms;
  }

  // Whether the best plan costs little more.
  bool IsNear(double ms, double gap) const {
    return BestMs() < kInf && BestMs() - ms <= gap * BestMs();
  }

  // Whether any plan fits.
  void FindAny() {
    SearchLimits left = Left();
    left.gap = 0;
    const TraceMinimum least =
        FindLeastPlan(problem_, left, std::max<int64_t>(budget_bytes_, 1));
    Try(least.modules);
    is_infeasible_ = least.budget.bound_bytes > budget_bytes_;
  }

  // Makes the best plan cheaper: without a unit, or with more that is saved.
  void Polish() {
    if (BestMs() == kInf) return;
    int left = kMostPolishing;
    for (bool is_better = true; is_better && left > 0;) {
      is_better = false;
      const std::vector<CheckpointedModule> units = result_.modules;
      for (size_t u = 0; u < units.size() && left > 0; ++u) {
        if (IsSettled(0) || IsStopped()) return;
        is_better |= PolishUnit(units[u].module, left);
      }
    }
  }

  bool PolishUnit(int32_t module, int& left) {
    const double before_ms = BestMs();
    const auto unit_in = [&](std::vector<CheckpointedModule>& units) {
      return std::ranges::find(units, module, &CheckpointedModule::module);
    };
    std::vector<CheckpointedModule> without = result_.modules;
    without.erase(unit_in(without));
    --left;
    Try(without);
    if (BestMs() < before_ms) return true;
    const auto candidate = std::ranges::find_if(
        problem_.candidates, [&](const TraceProblem::Candidate& c) {
          return problem_.trace->calls[c.call].module == module;
        });
    for (const graph::OperatorGroup& group :
         problem_.groups[candidate->module_node].groups) {
      std::vector<CheckpointedModule> units = result_.modules;
      std::vector<char>& save = unit_in(units)->save;
      const bool is_open = group.rule == graph::GroupRule::kFree &&
                           group.runtime > 0 && !save.empty() &&
                           save[group.ops.front()] == 0;
      if (!is_open || left <= 0) continue;
      for (const int op : group.ops) save[op] = 1;
      --left;
      Try(units);
    }
    return BestMs() < before_ms;
  }

  double BestMs() const {
    return result_.status == SearchStatus::kFeasible ? result_.use.recompute_ms
                                                     : kInf;
  }

  // Whether no plan is better that costs at least so much.
  bool IsSettled(double bound_ms) const {
    return bound_ms >= BestMs() * (1 - kTolerance);
  }

  void Close(double bound_ms) {
    closed_bound_ms_ = std::min(closed_bound_ms_, bound_ms);
  }

  // No plan recomputes less.
  double Bound() const {
    double bound_ms = std::min({closed_bound_ms_, current_bound_ms_, BestMs()});
    for (const TracePart& part : open_) {
      bound_ms = std::min(bound_ms, part.bound);
    }
    return bound_ms;
  }

  void Conclude() {
    result_.bound_ms = Bound();
    result_.seconds = stopwatch_.Seconds();
    if (result_.status == SearchStatus::kFeasible &&
        IsSettled(result_.bound_ms)) {
      result_.status = SearchStatus::kOptimal;
    } else if (result_.bound_ms == kInf) {
      result_.status = SearchStatus::kInfeasible;
    } else if (result_.stopped_by == StoppedBy::kNothing) {
      result_.stopped_by =
          is_memory_full_ ? StoppedBy::kMemory : StoppedBy::kUnproven;
      return;
    }
    if (result_.status == SearchStatus::kOptimal ||
        result_.status == SearchStatus::kInfeasible) {
      result_.stopped_by = StoppedBy::kNothing;
    }
  }

  bool IsStopped() {
    if (limits_.interrupted && limits_.interrupted->load()) {
      result_.stopped_by = StoppedBy::kInterrupt;
    } else if (stopwatch_.Seconds() > limits_.time_limit_s) {
      result_.stopped_by = StoppedBy::kTime;
    } else if (result_.nodes > limits_.node_limit) {
      result_.stopped_by = StoppedBy::kNodes;
    } else if (BestMs() < kInf && limits_.gap > 0 &&
               BestMs() - Bound() <= limits_.gap * BestMs()) {
      result_.stopped_by = StoppedBy::kGap;
    }
    return result_.stopped_by != StoppedBy::kNothing;
  }

  SearchLimits Left() const {
    SearchLimits left = limits_;
    left.time_limit_s =
        std::max(0.0, limits_.time_limit_s - stopwatch_.Seconds());
    left.node_limit = std::max<int64_t>(0, limits_.node_limit - result_.nodes);
    return left;
  }

  ModuleSolution Solve(JointProblem& joint, double gap, int64_t labels = kAll) {
    joint.relaxed.budget_bytes = static_cast<double>(budget_bytes_);
    SearchLimits left = Left();
    left.node_limit = std::min(left.node_limit, labels);
    left.gap = gap;
    left.cut_off = BestMs();
    if (limits_.on_progress) {
      left.on_progress = [&](const solver::SearchProgress& progress) {
        limits_.on_progress({.best = BestMs(),
                             .bound = Bound(),
                             .nodes = result_.nodes + progress.nodes,
                             .seconds = stopwatch_.Seconds()});
      };
    }
    ModuleSolution solution = SolveJointByLabels(joint, left);
    result_.nodes += solution.nodes;
    is_memory_full_ |= solution.stopped_by == StoppedBy::kMemory;
    result_.rows = std::max(result_.rows, solution.rows);
    result_.columns = std::max(result_.columns, solution.columns);
    return solution;
  }

  // What PyTorch refuses is no plan.
  std::optional<Simulation> Try(
      const std::vector<CheckpointedModule>& modules) {
    Simulation use;
    try {
      use = UseOf(problem_, modules);
    } catch (const InputError&) {
      return std::nullopt;
    }
    if (use.peak_bytes <= budget_bytes_ && use.recompute_ms < BestMs() &&
        KeepsMaxUnits(problem_, modules)) {
      result_.status = SearchStatus::kFeasible;
      result_.modules = modules;
      result_.use = use;
    }
    return use;
  }

  void TryPlan(RelaxedPlan& plan, std::vector<ChosenUnit> units) {
    plan.units = std::move(units);
    plan.modules = CheckpointedModules(problem_, plan.relaxation, plan.units);
    plan.use = Try(plan.modules);
  }

  bool BreaksBudget(const RelaxedPlan& plan) const {
    return plan.use && plan.use->peak_bytes > budget_bytes_;
  }

  // How exactly to solve the relaxations of a part at first: not at all more
  // exactly than the bound is near to the best plan.
  double GapFor(const TracePart& part) const {
    if (BestMs() == kInf) return kMostGapOfParts;
    const double gap = kShareOfGap * (1 - part.bound / BestMs());
    return gap < kLeastGapOfParts ? 0 : std::min(gap, kMostGapOfParts);
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
                              Relax(problem_, witnesses, part.decisions)};
      const ModuleSolution relaxed =
          Solve(plan.relaxation.joint, gap, gap > 0 ? kLabelsOfParts : kAll);
      if (relaxed.status == SearchStatus::kInfeasible) return;
      part.bound = std::max(part.bound, relaxed.bound_ms);
      current_bound_ms_ = part.bound;
      if (IsSettled(part.bound)) return Close(part.bound);
      const bool is_found = relaxed.status != SearchStatus::kNoSolution;
      if (is_found) TryPlan(plan, relaxed.units);
      if (IsSettled(part.bound) || IsStopped()) return Close(part.bound);
      // Nothing better that is much better; or better than the best plan now
      // known.
      if (gap > 0 && (!is_found || !BreaksBudget(plan))) {
        gap = 0;
        continue;
      }
      if (!is_found) return Close(part.bound);  // a limit
      ++round;
      weight /= 2;
      if (relaxed.ms > best_ms || !split.decision) {
        best_ms = relaxed.ms;
        split = SplitOn(problem_, part, plan, witnesses, budget_bytes_);
        part.witnesses = ChangesOf(first_, witnesses);
        part.next = ChangesOf(first_, split.next);
        weight = .5;
      }
      if (BreaksBudget(plan) && !IsNear(relaxed.ms, kGapOfRepairs)) {
        Repair(std::move(plan));
      }
      if (IsSettled(part.bound) || IsStopped()) return Close(part.bound);
      if (part.next == part.witnesses || relaxed.nodes > kManyLabels) break;
    }
    if (!split.decision) {
      Try(OnlyPlanOf(problem_, part));
      return;
    }
    open_.push_back(HalfOf(part, *split.decision, true));
    open_.push_back(HalfOf(part, *split.decision, false));
  }

  // Looks for a plan within the budget near one that is not: records that the
  // relaxation puts too low are raised to what the simulation shows, until the
  // plan fits.
  void Repair(RelaxedPlan plan) {
    const int rounds = result_.status == SearchStatus::kFeasible
                           ? kRepairRounds
                           : kFirstRepairRounds;
    if (++repairs_ > kMostRepairs) return;
    for (int round = 0; round < rounds && !IsStopped(); ++round) {
      RaiseRecords(plan);
      const ModuleSolution next = Solve(
          plan.relaxation.joint,
          std::max(limits_.gap, BestMs() < kInf ? kGapOfRepairs : kGapOfFirst));
      if (next.units.empty()) return;
      TryPlan(plan, next.units);
      if (!BreaksBudget(plan)) return;
    }
  }

  void RaiseRecords(RelaxedPlan& tried) const {
    std::vector<ModuleProblem::Node>& nodes =
        tried.relaxation.joint.relaxed.nodes;
    const auto is_around = [&](const ChosenUnit& unit, int node) {
      return unit.node <= node &&
             node < unit.node + nodes[unit.node].subtree_size;
    };
    const auto released_before = [&](int node) {
      double bytes = 0;
      for (const ChosenUnit& unit : tried.units) {
        if (!is_around(unit, node) &&
            nodes[unit.node].time < nodes[node].time) {
          bytes += unit.net_bytes;
        }
      }
      return bytes;
    };
    const std::vector<int32_t> times = TimesOf(*tried.use);
    for (size_t k = 0; k < times.size(); ++k) {
      if (tried.use->live_bytes[k] <= budget_bytes_) continue;
      const Simulation::Step& step = tried.use->steps[k];
      const int record =
          step.redone < 0
              ? problem_.record_of[times[k]]
              : problem_.candidates[problem_.candidate_of[step.redone]].node;
      const auto unit = std::ranges::find_if(
          tried.units,
          [&](const ChosenUnit& u) { return is_around(u, record); });
      const auto live = static_cast<double>(tried.use->live_bytes[k]);
      if (unit == tried.units.end()) {
        double& bytes = nodes[record].base_bytes;
        bytes = std::max(bytes, live + released_before(record));
      } else {
        std::optional<double>& bytes = nodes[unit->node].unit_base_bytes;
        bytes = std::max(*bytes, live + released_before(unit->node));
      }
    }
  }

  const TraceProblem& problem_;
  const Witnesses first_ = FirstWitnesses(problem_);
  const int64_t budget_bytes_;
  const SearchLimits& limits_;
  const solver::Stopwatch stopwatch_;
  std::vector<TracePart> open_;
  double closed_bound_ms_ = kInf;  // of parts that are not open any more
  double current_bound_ms_ = 0;    // of the part at hand
  int repairs_ = 0;
  bool is_infeasible_ = false;   // proven before the search
  bool is_memory_full_ = false;  // in a relaxation's search
  TraceSolution result_;
};

}  // namespace

TraceSolution SolveTraceProblem(const TraceProblem& problem,
                                int64_t budget_bytes,
                                const SearchLimits& limits,
                                const std::vector<CheckpointedModule>& known) {
  // Live bytes come in units of an allocation.
  return Search(problem, graph::WholeAllocations(budget_bytes), limits)
      .Run(known);
}

}  // namespace acplan::problems
