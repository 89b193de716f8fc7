#include "problems/kind_regret.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "solver/infinity.h"
#include "solver/price_planes.h"

// A robust plan. Let v_s(x) be the ratio at corner s of x's step to the shortest step known
// there. The least of max_s v_s(x) over all plans x is at least
//
//   L(p) = min over x of sum_s p_s v_s(x)      for any p >= 0 with sum_s p_s = 1,
//
// since the largest of numbers is at least each mean of them. L(p) is a planning problem:
// v_s is linear in what x runs again, so the sum is the recomputation for blended
// run-times, and a constant. Each plan found is a plane that L is below; the small program
// over planes finds the next p. A shorter step found later makes v_s larger, so earlier
// bounds hold.

namespace acplan::problems {
namespace {

using graph::ByKind;
using graph::kOperatorKinds;

constexpr int kMostRounds = 30;
// Bounds this close, as shares of the step, settle a search.
constexpr double kNear = 1e-5;

double Quotient(double ms, double other_ms) {
  if (other_ms <= 0) return ms > 0 ? solver::kInfinity : 1;
  return ms / other_ms;
}

// Returns the recomputation with a ratio for each kind.
double CostAt(const ByKind<double>& ratios, const TimedPlan& plan) {
  return std::inner_product(plan.ms_of_kind.begin(), plan.ms_of_kind.end(),
                            ratios.begin(), 0.0);
}

}  // namespace

RegretBounds RegretOf(const RatioBounds& step,
                      const RatioBounds& recomputation) {
  const auto above_one = [](double ratio) { return std::max(0.0, ratio - 1); };
  const auto if_finite = [&](double ratio) -> std::optional<double> {
    if (ratio == solver::kInfinity) return std::nullopt;
    return above_one(ratio);
  };
  return {
      .upper = {.step = above_one(step.upper),
                .recomputation = if_finite(recomputation.upper)},
      .lower = WorstRegret{.step = above_one(step.lower),
                           .recomputation = if_finite(recomputation.lower)}};
}

KindRegret::KindRegret(const graph::Trace& trace, const ByKind<double>& factors,
                       double least_ms, TimedPlans& plans)
    : trace_(trace), plans_(plans), kinds_(graph::KindsOf(trace)) {
  const Reruns most = MostReruns(trace);
  for (const graph::OperatorId op : trace.operators.ids()) {
    const auto kind = static_cast<size_t>(kinds_[op]);
    const double ms = trace.operators[op].runtime_ms;
    step_of_kind_[kind] += ms;
    if (EndOf(op) <= trace.forward_end) most_of_kind_[kind] += ms * most[op];
  }
  // The estimates themselves stand for all corners with one ratio for all kinds.
  Corner estimates{.bound_ms = least_ms, .knowledge = Knowledge::kSearched};
  for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
    estimates.ratios[kind] = step_of_kind_[kind] > 0 ? 1 : 0;
    estimates.step_ms += step_of_kind_[kind];
  }
  corners_.push_back(estimates);
  for (uint32_t subset = 0; subset < 1U << kOperatorKinds; ++subset) {
    AddCorner(subset, factors, least_ms);
  }
}

// Adds the corner at which the kinds in the subset take longer, unless all kinds that are
// there have one ratio or the subset names a kind that is not there.
void KindRegret::AddCorner(uint32_t subset, const ByKind<double>& factors,
                           double least_ms) {
  Corner corner;
  double least_ratio = solver::kInfinity;
  double most_ratio = 0;
  for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
    const bool is_longer = (subset >> kind & 1) != 0;
    if (step_of_kind_[kind] <= 0) {
      if (is_longer) return;
      continue;
    }
    corner.ratios[kind] = is_longer ? factors[kind] : 1 / factors[kind];
    corner.step_ms += corner.ratios[kind] * step_of_kind_[kind];
    least_ratio = std::min(least_ratio, corner.ratios[kind]);
    most_ratio = std::max(most_ratio, corner.ratios[kind]);
  }
  if (least_ratio >= most_ratio) return;
  corner.bound_ms = LeastAt(corner.ratios, least_ms);
  corners_.push_back(corner);
}

// Returns a bound at a corner that follows from the one for the estimates: a plan may
// recompute what is shortest there as far as there is so much.
double KindRegret::LeastAt(const ByKind<double>& ratios,
                           double least_ms) const {
  std::array<size_t, kOperatorKinds> kinds;
  std::iota(kinds.begin(), kinds.end(), 0);
  std::ranges::sort(kinds, {}, [&](size_t kind) { return ratios[kind]; });
  double left_ms = least_ms;
  double bound_ms = 0;
  for (const size_t kind : kinds) {
    const double ms = std::min(left_ms, most_of_kind_[kind]);
    bound_ms += ms * ratios[kind];
    left_ms -= ms;
  }
  return bound_ms + left_ms * ratios[kinds.back()];
}

Times KindRegret::TimesAt(const ByKind<double>& ratios) const {
  Times times = EstimatesOf(trace_);
  for (const graph::OperatorId op : times.ids()) {
    times[op] *= ratios[static_cast<size_t>(kinds_[op])];
  }
  return times;
}

double KindRegret::LeastOfKnown(const Corner& corner) const {
  double least = solver::kInfinity;
  for (const TimedPlan& plan : plans_.plans()) {
    least = std::min(least, CostAt(corner.ratios, plan));
  }
  return least;
}

size_t KindRegret::WorstOf(const TimedPlan& plan, Measure measure) const {
  size_t worst = 0;
  double largest = -solver::kInfinity;
  for (size_t c = 0; c < corners_.size(); ++c) {
    const double base_ms = BaseOf(measure) * corners_[c].step_ms;
    const double ratio = Quotient(base_ms + CostAt(corners_[c].ratios, plan),
                                  base_ms + corners_[c].bound_ms);
    if (ratio > largest) {
      largest = ratio;
      worst = c;
    }
  }
  return worst;
}

RatioBounds KindRegret::BoundsOf(size_t plan, Measure measure) const {
  return BoundsOf(plans_.plans()[plan], measure);
}

RatioBounds KindRegret::BoundsOf(const TimedPlan& plan, Measure measure) const {
  RatioBounds bounds;
  for (const Corner& corner : corners_) {
    const double base_ms = BaseOf(measure) * corner.step_ms;
    const double ms = base_ms + CostAt(corner.ratios, plan);
    bounds.upper =
        std::max(bounds.upper, Quotient(ms, base_ms + corner.bound_ms));
    bounds.lower =
        std::max(bounds.lower, Quotient(ms, base_ms + LeastOfKnown(corner)));
  }
  bounds.upper = std::max(bounds.upper, bounds.lower);
  return bounds;
}

ByKind<double> KindRegret::WorstCorner(size_t plan, Measure measure) const {
  return corners_[WorstOf(plans_.plans()[plan], measure)].ratios;
}

// Raises the bound at a corner, at first by what takes a moment.
void KindRegret::Improve(Corner& corner) {
  const Times times = TimesAt(corner.ratios);
  if (corner.knowledge == Knowledge::kFree) {
    corner.bound_ms = std::max(corner.bound_ms, plans_.QuickBound(times));
    corner.knowledge = Knowledge::kQuick;
    return;
  }
  corner.bound_ms = std::max(corner.bound_ms, plans_.Search(times));
  corner.knowledge = Knowledge::kSearched;
}

void KindRegret::Sharpen(size_t plan, Measure measure) {
  while (!plans_.IsStopped()) {
    Corner& worst = corners_[WorstOf(plans_.plans()[plan], measure)];
    if (worst.knowledge == Knowledge::kSearched) return;
    Improve(worst);
  }
}

// Returns the plan whose largest ratio is the least as far as is proven. Searches at the
// worst corners of plans that may lose less.
size_t KindRegret::LeastLosing() {
  while (true) {
    std::vector<RatioBounds> bounds;
    for (const TimedPlan& plan : plans_.plans()) {
      bounds.push_back(BoundsOf(plan, Measure::kStep));
    }
    const auto best = std::ranges::min_element(bounds, {}, &RatioBounds::upper);
    const auto best_plan = static_cast<size_t>(best - bounds.begin());
    Corner* open = nullptr;
    for (size_t plan = 0; plan < bounds.size() && open == nullptr; ++plan) {
      if (plan != best_plan && bounds[plan].lower >= best->upper) continue;
      Corner& worst = corners_[WorstOf(plans_.plans()[plan], Measure::kStep)];
      if (worst.knowledge != Knowledge::kSearched) open = &worst;
    }
    if (open == nullptr || plans_.IsStopped()) return best_plan;
    Improve(*open);
  }
}

// Returns L of the comment above.
double KindRegret::BoundByBlend(const std::vector<double>& shares) {
  const double scale = corners_.front().step_ms;
  ByKind<double> ratios = {};
  double constant = 0;
  for (size_t c = 0; c < corners_.size(); ++c) {
    const Corner& corner = corners_[c];
    const double weight = shares[c] / (corner.step_ms + LeastOfKnown(corner));
    constant += weight * corner.step_ms;
    for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
      ratios[kind] += scale * weight * corner.ratios[kind];
    }
  }
  return constant + plans_.Search(TimesAt(ratios)) / scale;
}

KindRegret::Robust KindRegret::FindRobust() {
  Robust robust;
  if (corners_.front().step_ms <= 0) return robust;
  for (int round = 0; round < kMostRounds; ++round) {
    robust.plan = LeastLosing();
    const double most = BoundsOf(robust.plan, Measure::kStep).upper;
    if (plans_.IsStopped() || most - robust.least_ratio <= kNear) break;
    std::vector<double> shortest;
    for (const Corner& corner : corners_) {
      shortest.push_back(corner.step_ms + LeastOfKnown(corner));
    }
    std::vector<solver::PricePlane> planes;
    for (const TimedPlan& plan : plans_.plans()) {
      solver::PricePlane plane;
      for (size_t c = 0; c < corners_.size(); ++c) {
        const double ratio =
            (corners_[c].step_ms + CostAt(corners_[c].ratios, plan)) /
            shortest[c];
        if (c == 0) {
          plane.cost = ratio;
        } else {
          plane.excess.push_back(ratio - plane.cost);
        }
      }
      planes.push_back(plane);
    }
    const auto highest =
        solver::FindHighestPoint(planes, corners_.size() - 1, 1);
    if (!highest || highest->height - robust.least_ratio <= kNear) break;
    std::vector<double> shares = {1};
    for (const double price : highest->prices) {
      shares.push_back(price);
      shares.front() -= price;
    }
    shares.front() = std::max(0.0, shares.front());
    const size_t plans_before = plans_.plans().size();
    robust.least_ratio = std::max(robust.least_ratio, BoundByBlend(shares));
    if (plans_.plans().size() == plans_before) break;
  }
  robust.plan = LeastLosing();
  return robust;
}

}  // namespace acplan::problems
