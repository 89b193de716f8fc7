#include "problems/engines/labels/joint_pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "problems/engines/labels/completion_bound.h"
#include "problems/engines/labels/forest_walk.h"
#include "problems/engines/labels/joint_history.h"
#include "problems/engines/labels/label_passes.h"
#include "problems/engines/labels/open_groups.h"
#include "problems/engines/labels/point_labels.h"
#include "problems/model/joint_solution.h"
#include "solver/infinity.h"
#include "solver/labels/convex_cost.h"

// One pass of the label engine over a joint problem.
//
// The walk over the forest (forest_walk.h) carries labels: points (bytes D
// discarded so far, their cost E in ms). A record asks for a total of the bytes
// discarded before it, so the rest of the walk depends on the past through D
// only, and of two labels the one with at most as many bytes for at least as
// many ms can go. A module that becomes a unit moves every label that meets the
// records inside by the unit's base, all groups saved. Then its groups are
// decided kind by kind: each label goes on with and without some copies, in
// steps of 1, 2, 4 ... copies, which make every number of them.
//
// Invariant: the labels of the walk, together with those that were dropped for
// the width, contain the beginning of every plan that costs less than the
// threshold, or of one that discards as much for as little. The completion
// bound Q (completion_bound.h) never exceeds the cost of the rest of a plan, so
// a label with E + Q(largest need - D) at or above the threshold begins no such
// plan. The same bound settles groups: with the slope of Q as the price of a
// byte, a group on the other side than in the relaxation costs its reduced cost
// more. If that exceeds, for every label, the difference between the threshold
// and the label's bound, the group is not branched on (open_groups.h). Within a
// unit, Q is that of the rest of the walk plus the relaxation of the groups
// that are still open.
//
// So a pass that drops nothing for its width and ends without a plan proves
// that no plan costs less than its threshold, and one that ends with a plan has
// found the cheapest. Bytes are whole numbers and times fixed-point integers:
// equal blocks give equal sums in any order, their labels merge, and the
// symmetry that stalls branch and bound costs nothing.
//
// With max_units there is a list of labels for each number of units. Q then
// charges every unit a price and credits the units that a label may still add
// (Lagrangian relaxation).
//
// The walk is dynamic programming with bounds, as for the knapsack problem
// (Pisinger's minimal algorithms settle items by reduced cost in the same way).

namespace acplan::problems {

using solver::ConvexCost;
using solver::kInfinity;
using solver::SearchLimits;
using solver::StoppedBy;

namespace {

// The input that all passes over a problem share.
class PassInput {
 public:
  explicit PassInput(const JointProblem& problem)
      : problem_(problem),
        fixed_(ToFixedPoint(problem.relaxed, 1)),
        bound_(problem.relaxed, fixed_,
               BestUnitPrice(problem.relaxed, fixed_)) {
    for (const JointProblem::Policies& policies : problem.policies) {
      policies_.push_back(ToTicks(policies));
    }
    const std::vector<ModuleProblem::Node>& nodes = problem.relaxed.nodes;
    lost_from_.assign(nodes.size() + 1, 0);
    for (size_t i = nodes.size(); i-- > 0;) {
      const int policy = problem.policies_of[i];
      const int64_t least = policy < 0 ? 0 : policies_[policy].base_bytes;
      lost_from_[i] = lost_from_[i + 1] + std::max<int64_t>(-least, 0);
    }
  }
  PassInput(const PassInput&) = delete;
  PassInput& operator=(const PassInput&) = delete;

  const JointProblem& problem() const { return problem_; }
  const FixedProblem& fixed() const { return fixed_; }
  const CompletionBound& bound() const { return bound_; }

  bool IsCandidate(int node) const { return problem_.policies_of[node] >= 0; }
  const TickPolicies& PoliciesOf(int node) const {
    return policies_[problem_.policies_of[node]];
  }

  // Returns the largest need of any step after the node. Later units may
  // discard less than nothing.
  int64_t NeedAfter(int node) const {
    return fixed_.need_after[node] +
           lost_from_[node + problem_.relaxed.nodes[node].subtree_size];
  }

  // Returns the bound's charge for the units that a label may still add.
  double Credit(size_t count) const {
    const auto& max_units = problem_.relaxed.max_units;
    return max_units
               ? bound_.unit_price() *
                     static_cast<double>(*max_units - static_cast<int>(count))
               : 0;
  }

  // Returns the bound on all plans: no plan costs less.
  double RootBound() const {
    return bound_.AtRoot() -
           bound_.unit_price() * problem_.relaxed.max_units.value_or(0);
  }

 private:
  const JointProblem& problem_;
  FixedProblem fixed_;
  CompletionBound bound_;  // refers to fixed_
  std::vector<TickPolicies> policies_;
  // The most bytes that units from a node on may keep beyond those that they
  // discard, indexed by that node.
  std::vector<int64_t> lost_from_;
};

// Drops labels that cannot lead to a better plan and, beyond the width, the
// least promising ones.
class LabelLimit {
 public:
  explicit LabelLimit(size_t width) : width_(width) {}

  bool IsExceededBy(const PointLabels& labels) const {
    return labels.size() > width_;
  }

  // Returns a lower bound on the plans that the width dropped.
  double least_dropped() const { return least_dropped_; }

  // Drops labels. `rest` is the bound on the rest of the walk.
  void Prune(const ConvexCost& rest, const PassBar& bar, PointLabels& labels) {
    const double limit = bar.threshold + bar.credit;
    bounds_.clear();
    ConvexCost::Reader reader(rest);
    size_t kept_count = 0;
    for (const PointLabel& label : labels) {
      const double bound =
          ToMs(label.ticks) + reader.At(bar.largest_need - label.bytes);
      if (bound == kInfinity || bound >= limit) continue;
      bounds_.push_back(bound);
      labels[kept_count++] = label;
    }
    labels.resize(kept_count);
    if (IsExceededBy(labels)) CutToWidth(bar.credit, labels);
  }

 private:
  void CutToWidth(double credit, PointLabels& labels) {
    // The label that has discarded most is never dropped: if it cannot meet the
    // records to come, no label can. So the first pass, which prunes nothing
    // for its cost, finds a plan if there is one.
    ranked_ = bounds_;
    std::nth_element(ranked_.begin(),
                     ranked_.begin() + static_cast<ptrdiff_t>(width_),
                     ranked_.end());
    const double limit = ranked_[width_];
    size_t kept_count = 0;
    for (size_t k = 0; k < bounds_.size(); ++k) {
      if (bounds_[k] < limit || k + 1 == bounds_.size()) {
        labels[kept_count++] = labels[k];
      } else {
        least_dropped_ = std::min(least_dropped_, bounds_[k] - credit);
      }
    }
    labels.resize(kept_count);
  }

  size_t width_;
  double least_dropped_ = kInfinity;
  std::vector<double> bounds_, ranked_;  // scratch, before credits
};

// The innermost loops of the engine. They stay in the source of the pass, so
// that the compiler sees all that they call.
class Extension {
 public:
  // The bytes and ticks that a label may take, and the bit that records that.
  struct Step {
    int64_t bytes, ticks;
    uint32_t bit;
  };

  // Replaces each label by itself with and without the step. Keeps the labels
  // that no other beats and that may lead to a better plan. For most labels
  // only one side may, so both sides are pruned before they are merged.
  void Apply(const Step& step, const ConvexCost& rest, const PassBar& bar,
             PointLabels& labels) {
    const Sizes sizes = PruneSides(step, rest, bar, labels);
    const size_t begin = Merge(sizes);
    labels.assign(merged_.begin() + static_cast<ptrdiff_t>(begin),
                  merged_.end());
  }

 private:
  struct Sizes {
    size_t with, without;
  };

  Sizes PruneSides(const Step& step, const ConvexCost& rest, const PassBar& bar,
                   const PointLabels& labels) {
    const double limit = bar.threshold + bar.credit;
    const size_t n = labels.size();
    if (with_.size() < n) {
      with_.resize(2 * n);
      without_.resize(2 * n);
    }
    Sizes sizes{.with = 0, .without = 0};
    ConvexCost::Reader with_reader(rest);
    ConvexCost::Reader without_reader(rest);
    for (const PointLabel& label : labels) {
      const int64_t missing = bar.largest_need - label.bytes;
      without_[sizes.without] = label;
      sizes.without +=
          ToMs(label.ticks) + without_reader.At(missing) < limit ? 1 : 0;
      with_[sizes.with] = {label.bytes + step.bytes, label.ticks + step.ticks,
                           label.move, label.decisions | step.bit};
      sizes.with += ToMs(label.ticks + step.ticks) +
                                with_reader.At(missing - step.bytes) <
                            limit
                        ? 1
                        : 0;
    }
    return sizes;
  }

  // Returns the index at which the envelope begins in merged_. Fills merged_
  // from its end, so that the same memory serves every time.
  size_t Merge(Sizes sizes) {
    auto [with_size, without_size] = sizes;
    if (merged_.size() < with_size + without_size) {
      merged_.resize(with_.size() + without_.size());
    }
    size_t begin = merged_.size();
    int64_t least = std::numeric_limits<int64_t>::max();
    const auto offer = [&](const PointLabel& next) {
      merged_[begin - 1] = next;
      begin -= next.ticks < least ? 1 : 0;
      least = std::min(least, next.ticks);
    };
    while (with_size > 0 && without_size > 0) {
      const PointLabel& a = without_[without_size - 1];
      const PointLabel& b = with_[with_size - 1];
      const bool takes_a =
          a.bytes > b.bytes || (a.bytes == b.bytes && a.ticks <= b.ticks);
      offer(takes_a ? a : b);
      without_size -= takes_a ? 1 : 0;
      with_size -= takes_a ? 0 : 1;
    }
    for (; with_size > 0; --with_size) offer(with_[with_size - 1]);
    for (; without_size > 0; --without_size) offer(without_[without_size - 1]);
    return begin;
  }

  PointLabels with_, without_, merged_;
};

// The rules of the walk.
class JointPass {
 public:
  using Labels = PointLabels;
  using Lists = LabelsByCount<Labels>;

  JointPass(const PassInput& input, double threshold, size_t width,
            const PassCheck& check)
      : input_(input), threshold_(threshold), check_(check), limit_(width) {}

  PassResult Run() {
    ForestWalk walk(input_.problem().relaxed, input_.fixed(), *this);
    const Lists lists =
        walk.Run({{.bytes = 0, .ticks = 0, .move = -1, .decisions = 0}});
    result_.least_dropped = limit_.least_dropped();
    if (IsStopped()) return std::move(result_);
    const PointLabel* last = nullptr;
    for (const PointLabels& labels : lists) {
      if (!labels.empty() && (!last || labels.front().ticks < last->ticks)) {
        last = &labels.front();
      }
    }
    // Unused units are credited in the bounds, so with max_units a label that
    // is no better than the best plan may get here.
    if (last && ToMs(last->ticks) < threshold_) result_.units = UnitsOf(*last);
    return std::move(result_);
  }

  bool IsStopped() const { return result_.stopped_by != StoppedBy::kNothing; }

  bool IsCandidate(int node) const { return input_.IsCandidate(node); }

  static void CutTo(int64_t need, PointLabels& labels) {
    problems::CutTo(need, labels);
  }

  Lists AddUnit(int node, const Lists& before) {
    Lists as_unit(before.size());
    const size_t added_units = input_.problem().relaxed.max_units ? 1 : 0;
    for (size_t k = 0; k + added_units < before.size() && !IsStopped(); ++k) {
      as_unit[k + added_units] = AddUnitTo(node, k + added_units, before[k]);
    }
    return as_unit;
  }

  Lists Required(int node, Lists as_unit) {
    PruneAfter(node, as_unit);
    return as_unit;
  }

  Lists Join(int node, Lists lists, const Lists& as_unit) {
    for (size_t k = 0; k < lists.size(); ++k) {
      if (!as_unit[k].empty()) lists[k] = Envelope(lists[k], as_unit[k]);
    }
    DropDearerCounts(lists);
    PruneAfter(node, lists);
    for (PointLabels& labels : lists) CapAt(input_.NeedAfter(node), labels);
    return lists;
  }

  void EndNode(const LiveLabels<PointLabels>& live) {
    history_.ForgetUnless(live);
    Check();
  }

 private:
  PassBar BarOf(size_t count) const {
    return {.threshold = threshold_,
            .credit = input_.Credit(count),
            .largest_need = input_.fixed().largest_need};
  }

  void Check() {
    if (!IsStopped()) result_.stopped_by = check_(result_.labels);
  }

  void PruneAfter(int node, Lists& lists) {
    for (size_t k = 0; k < lists.size(); ++k) {
      limit_.Prune(input_.bound().After(node), BarOf(k), lists[k]);
    }
  }

  // Returns the labels with this unit, which then have `count` units.
  PointLabels AddUnitTo(int node, size_t count, const PointLabels& before) {
    const TickPolicies& unit = input_.PoliciesOf(node);
    const int64_t need = input_.fixed().unit_need[node];
    const auto first =
        std::ranges::lower_bound(before, need, {}, &PointLabel::bytes);
    PointLabels labels(first, before.end());
    MoveBy(unit.base_bytes, unit.base_ticks, labels);
    const PassBar bar = BarOf(count);
    const ConvexCost& after = input_.bound().After(node);
    OpenedUnit opened =
        OpenUnit(unit, after.Plus(unit.relaxed), bar, std::move(labels));
    labels = std::move(opened.labels);
    if (labels.empty()) return labels;

    if (!opened.points.empty()) {
      history_.BeginUnitOfPoints(node);
      labels = TakePoints(opened.points, after, bar, labels);
      EndUnit(node, labels);
      return labels;
    }
    history_.BeginUnit(node, std::move(opened.settled));
    MoveBy(opened.bytes, opened.ticks, labels);
    BoundsByKind bounds(opened.kinds, after);
    for (size_t k = 0; k < opened.kinds.size(); ++k) {
      Decide(opened.kinds[k], bounds.At(k), bar, labels);
    }
    EndUnit(node, labels);
    return labels;
  }

  void EndUnit(int node, PointLabels& labels) {
    CapAt(input_.NeedAfter(node), labels);
    history_.EndUnit(labels);
    CheckMemory();
  }

  // Adds every policy of a unit to every label. Keeps the sums that no other
  // beats and that may lead to a better plan.
  PointLabels TakePoints(const std::vector<OpenPoint>& points,
                         const ConvexCost& after, const PassBar& bar,
                         const PointLabels& labels) {
    PointLabels sums = SumsWith(points, labels, after, bar);
    result_.labels += static_cast<int64_t>(sums.size());
    if (limit_.IsExceededBy(sums)) limit_.Prune(after, bar, sums);
    Check();
    return sums;
  }

  static void MoveBy(int64_t bytes, int64_t ticks, PointLabels& labels) {
    for (PointLabel& label : labels) {
      label.bytes += bytes;
      label.ticks += ticks;
    }
  }

  void Decide(const OpenKind& kind, const BoundsByKind::Bounds& bounds,
              const PassBar& bar, PointLabels& labels) {
    for (int decided_copies = 0;
         decided_copies < kind.copies && !IsStopped();) {
      const int copies =
          std::min(decided_copies + 1, kind.copies - decided_copies);
      decided_copies += copies;
      const uint32_t bit = history_.AddStep(kind.kind, copies, labels);
      CheckMemory();
      const ConvexCost& rest =
          decided_copies < kind.copies ? bounds.from_kind : bounds.after_kind;
      extension_.Apply({.bytes = kind.bytes * copies,
                        .ticks = kind.ticks * copies,
                        .bit = bit},
                       rest, bar, labels);
      result_.labels += static_cast<int64_t>(labels.size());
      if (limit_.IsExceededBy(labels)) limit_.Prune(rest, bar, labels);
      Check();
    }
  }

  void CheckMemory() {
    if (history_.IsFull()) result_.stopped_by = StoppedBy::kMemory;
  }

  std::vector<ChosenUnit> UnitsOf(const PointLabel& label) const {
    const JointProblem& problem = input_.problem();
    std::vector<ChosenUnit> units = history_.UnitsOf(label);
    for (ChosenUnit& unit : units) {
      unit.net_bytes = static_cast<double>(
          problem.policies[problem.policies_of[unit.node]].BytesOf(
              unit.counts));
    }
    return units;
  }

  const PassInput& input_;
  double threshold_;
  const PassCheck& check_;
  LabelLimit limit_;
  Extension extension_;
  JointHistory history_;
  PassResult result_;
};

}  // namespace

ModuleSolution SearchJointByPasses(const JointProblem& problem,
                                   const SearchLimits& limits,
                                   const JointStart& start) {
  const PassInput input(problem);
  const auto run = [&](double threshold, size_t width, const PassCheck& check) {
    return JointPass(input, threshold, width, check).Run();
  };
  const auto improve = [&](std::vector<ChosenUnit> units) {
    units = WithoutNeedlessUnits(problem.relaxed, std::move(units));
    for (ChosenUnit& unit : units) {
      unit = WithCheapPolicy(problem, std::move(unit));
    }
    return units;
  };
  const auto cost = [&](const std::vector<ChosenUnit>& units) {
    return JointCost(problem, units);
  };
  return SearchByPasses(problem.relaxed,
                        std::max(start.bound_ms, input.RootBound()), limits,
                        {.run = run,
                         .improve = improve,
                         .cost = cost,
                         .known_units = start.known_units,
                         .known_is_near = start.known_is_near});
}

}  // namespace acplan::problems
