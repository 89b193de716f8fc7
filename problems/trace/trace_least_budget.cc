#include "problems/trace/trace_least_budget.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/trace/trace_parts.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;
using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostParts = 20'000;
// Relaxations of a part before it is split.
constexpr int kRounds = 4;
// For a plan of a relaxation, which need not be the cheapest.
constexpr int64_t kLabelsAPlan = 200'000;

class Search {
 public:
  Search(const TraceProblem& problem, const SearchLimits& limits,
         int64_t enough_bytes)
      : problem_(problem), limits_(limits), enough_bytes_(enough_bytes) {}

  TraceMinimum Run(const std::vector<CheckpointedModule>& known) {
    Try({});
    if (!known.empty()) Try(known);
    // The first takes a moment, and says something whatever the limits.
    Branch({});
    current_bound_ = kImpossible;
    for (int64_t parts = 1; !open_.empty() && !IsStopped(); ++parts) {
      if (parts == kMostParts) {
        answer_.budget.stopped_by = StoppedBy::kNodes;
        break;
      }
      const auto least = std::ranges::min_element(open_, {}, &TracePart::bound);
      TracePart part = std::move(*least);
      open_.erase(least);
      current_bound_ = BytesOf(part.bound);
      Branch(std::move(part));
      current_bound_ = kImpossible;
    }
    MinimumBudget& budget = answer_.budget;
    budget.bound_bytes = Bound();
    budget.proven = budget.bound_bytes == budget.bytes;
    if (budget.proven) budget.stopped_by = StoppedBy::kNothing;
    return std::move(answer_);
  }

 private:
  static int64_t BytesOf(double bound) { return static_cast<int64_t>(bound); }

  int64_t Best() const { return answer_.budget.bytes; }

  // No plan needs less.
  int64_t Bound() const {
    int64_t bound = std::min(Best(), current_bound_);
    for (const TracePart& part : open_) {
      bound = std::min(bound, BytesOf(part.bound));
    }
    return bound;
  }

  bool IsStopped() {
    StoppedBy& stopped_by = answer_.budget.stopped_by;
    if (Best() <= enough_bytes_ || Bound() >= Best()) return true;
    if (enough_bytes_ > 0 && Bound() > enough_bytes_) return true;
    if (limits_.interrupted && limits_.interrupted->load()) {
      stopped_by = StoppedBy::kInterrupt;
    } else if (stopwatch_.Seconds() > limits_.time_limit_s) {
      stopped_by = StoppedBy::kTime;
    } else if (labels_ > limits_.node_limit) {
      stopped_by = StoppedBy::kNodes;
    } else if (limits_.gap > 0 &&
               static_cast<double>(Best() - Bound()) <=
                   limits_.gap * static_cast<double>(Best())) {
      stopped_by = StoppedBy::kGap;
    }
    return stopped_by != StoppedBy::kNothing;
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
    const bool is_first = modules.empty() && answer_.budget.bytes == 0;
    if (is_first ||
        (use.peak_bytes < Best() && KeepsMaxUnits(problem_, modules))) {
      answer_.budget.bytes = use.peak_bytes;
      answer_.modules = modules;
    }
    return use;
  }

  // The least budget of a relaxation, in whole allocations.
  int64_t LeastOf(const TraceRelaxation& relaxation) const {
    const ModuleProblem& relaxed = relaxation.joint.relaxed;
    if (relaxed.fixed_bytes > static_cast<double>(Best())) return kImpossible;
    const MinimumBudget least = FindMinimumBudget(relaxed);
    return graph::AllocatedBytes(least.bytes);
  }

  // A plan of the relaxation within a budget that it just meets.
  std::vector<ChosenUnit> PlanOf(JointProblem& joint, int64_t budget_bytes) {
    joint.relaxed.budget_bytes = static_cast<double>(budget_bytes);
    const ModuleSolution solution =
        SolveJointByLabels(joint, {.gap = 1,
                                   .node_limit = kLabelsAPlan,
                                   .interrupted = limits_.interrupted});
    labels_ += solution.nodes;
    return solution.units;
  }

  void Branch(TracePart part) {
    std::optional<Decision> decision;
    double weight = 1;
    int64_t best_bound = -1;
    for (int round = 0; round < kRounds; ++round) {
      const Witnesses witnesses =
          Blend(first_, part.witnesses, part.next, weight);
      RelaxedPlan plan = {.relaxation =
                              Relax(problem_, witnesses, part.decisions)};
      const int64_t least = LeastOf(plan.relaxation);
      if (least >= Best()) return;
      part.bound = std::max(part.bound, static_cast<double>(least));
      current_bound_ = BytesOf(part.bound);
      plan.units = PlanOf(plan.relaxation.joint, least);
      plan.modules = CheckpointedModules(problem_, plan.relaxation, plan.units);
      plan.use = Try(plan.modules);
      if (BytesOf(part.bound) >= Best()) return;
      weight /= 2;
      if (least > best_bound) {
        best_bound = least;
        Split split =
            SplitOn(problem_, part, plan, witnesses, BytesOf(part.bound));
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
    open_.push_back(HalfOf(part, *decision, true));
    open_.push_back(HalfOf(part, *decision, false));
  }

  const TraceProblem& problem_;
  const Witnesses first_ = FirstWitnesses(problem_);
  const SearchLimits& limits_;
  const int64_t enough_bytes_;
  const solver::Stopwatch stopwatch_;
  std::vector<TracePart> open_;
  int64_t current_bound_ = kImpossible;  // of the part at hand
  int64_t labels_ = 0;
  TraceMinimum answer_;
};

}  // namespace

TraceMinimum FindLeastPlan(const TraceProblem& problem,
                           const SearchLimits& limits, int64_t enough_bytes,
                           const std::vector<CheckpointedModule>& known) {
  return Search(problem, limits, enough_bytes).Run(known);
}

}  // namespace acplan::problems
