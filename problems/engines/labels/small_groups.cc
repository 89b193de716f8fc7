#include "problems/engines/labels/small_groups.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace acplan::problems {

namespace {

int64_t FewBytes(const JointProblem& problem) {
  constexpr double kShare = 0x1p-13;
  double need = 0;
  for (const ModuleProblem::Node& node : problem.relaxed.nodes) {
    if (node.time >= 0) {
      need = std::max(need, node.base_bytes - problem.relaxed.budget_bytes);
    }
  }
  return static_cast<int64_t>(need * kShare);
}

// Returns the indices at which clusters of points begin, and the end. A cluster
// holds points that are at most `few_bytes` from its first.
std::vector<size_t> ClustersOf(const std::vector<PolicyPoint>& points,
                               int64_t few_bytes) {
  std::vector<size_t> begins;
  for (size_t p = 0; p < points.size(); ++p) {
    if (begins.empty() ||
        points[p].bytes > points[begins.back()].bytes + few_bytes) {
      begins.push_back(p);
    }
  }
  begins.push_back(points.size());
  return begins;
}

// Returns the policies that are points[begin, end) of others.
JointProblem::Policies PointsFrom(const std::vector<PolicyPoint>& points,
                                  size_t begin, size_t end) {
  return {.base_bytes = points[begin].bytes,
          .base_ms = points[begin].ms,
          .kinds = {},
          .points = {points.begin() + static_cast<ptrdiff_t>(begin),
                     points.begin() + static_cast<ptrdiff_t>(end)}};
}

JointProblem::Policies PointsOf(std::vector<PolicyPoint> points) {
  return PointsFrom(points, 0, points.size());
}

// Returns the problem with curves of its relaxation that follow its policies.
JointProblem WithCurves(JointProblem problem) {
  for (size_t i = 0; i < problem.policies_of.size(); ++i) {
    if (problem.policies_of[i] < 0) continue;
    problem.relaxed.nodes[i].curve =
        HullOf(problem.policies[problem.policies_of[i]]);
  }
  return problem;
}

}  // namespace

SmallGroups::SmallGroups(const JointProblem& problem, double price)
    : problem_(problem), price_(price), few_bytes_(FewBytes(problem)) {}

std::optional<JointProblem> SmallGroups::Priced() const {
  JointProblem large = problem_;
  bool has_small = false;
  for (JointProblem::Policies& policies : large.policies) {
    if (!policies.points.empty()) {
      std::vector<PolicyPoint> cheap;
      for (const size_t p : CheapPoints(policies.points)) {
        cheap.push_back(policies.points[p]);
      }
      has_small |= cheap.size() < policies.points.size();
      policies = PointsOf(std::move(cheap));
    }
    std::erase_if(policies.kinds, [&](const GroupKind& kind) {
      if (!IsSmall(kind)) return false;
      has_small = true;
      if (IsCheap(kind)) {
        policies.base_bytes += kind.bytes * kind.count;
        policies.base_ms += kind.ms * kind.count;
      }
      return true;
    });
  }
  if (!has_small) return std::nullopt;
  return WithCurves(std::move(large));
}

// Returns, for each cluster, the point that is cheapest at the price.
std::vector<size_t> SmallGroups::CheapPoints(
    const std::vector<PolicyPoint>& points) const {
  const std::vector<size_t> begins = ClustersOf(points, few_bytes_);
  std::vector<size_t> cheap;
  for (size_t c = 0; c + 1 < begins.size(); ++c) {
    const auto first = points.begin() + static_cast<ptrdiff_t>(begins[c]);
    const auto end = points.begin() + static_cast<ptrdiff_t>(begins[c + 1]);
    const auto best =
        std::ranges::min_element(first, end, {}, [&](const PolicyPoint& p) {
          return p.ms - price_ * static_cast<double>(p.bytes);
        });
    cheap.push_back(static_cast<size_t>(best - points.begin()));
  }
  return cheap;
}

JointProblem SmallGroups::Free() const {
  JointProblem large = problem_;
  for (JointProblem::Policies& policies : large.policies) {
    if (!policies.points.empty()) {
      const std::vector<size_t> begins =
          ClustersOf(policies.points, few_bytes_);
      std::vector<PolicyPoint> best;
      for (size_t c = 0; c + 1 < begins.size(); ++c) {
        best.push_back({policies.points[begins[c + 1] - 1].bytes,
                        policies.points[begins[c]].ms});
      }
      policies = PointsOf(std::move(best));
    }
    std::erase_if(policies.kinds, [&](const GroupKind& kind) {
      if (!IsSmall(kind)) return false;
      policies.base_bytes += kind.bytes * kind.count;
      return true;
    });
  }
  return WithCurves(std::move(large));
}

JointProblem SmallGroups::SmallOnly(
    const JointProblem& priced, const std::vector<ChosenUnit>& units) const {
  JointProblem small_problem = problem_;
  small_problem.policies.clear();
  small_problem.policies_of.assign(problem_.policies_of.size(), -1);
  for (ModuleProblem::Node& node : small_problem.relaxed.nodes)
    node.curve.clear();
  for (const ChosenUnit& unit : units) {
    const JointProblem::Policies& all =
        problem_.policies[problem_.policies_of[unit.node]];
    const JointProblem::Policies& large =
        priced.policies[priced.policies_of[unit.node]];
    small_problem.policies_of[unit.node] =
        static_cast<int>(small_problem.policies.size());
    if (!all.points.empty()) {
      const std::vector<size_t> begins = ClustersOf(all.points, few_bytes_);
      const size_t cluster = unit.counts[0];
      small_problem.policies.push_back(
          PointsFrom(all.points, begins[cluster], begins[cluster + 1]));
      continue;
    }
    JointProblem::Policies policies{
        .base_bytes = all.base_bytes, .base_ms = all.base_ms, .kinds = {}};
    for (size_t k = 0; k < unit.counts.size(); ++k) {
      policies.base_bytes += large.kinds[k].bytes * unit.counts[k];
      policies.base_ms += large.kinds[k].ms * unit.counts[k];
    }
    std::ranges::copy_if(all.kinds, std::back_inserter(policies.kinds),
                         [&](const GroupKind& kind) { return IsSmall(kind); });
    small_problem.policies.push_back(std::move(policies));
  }
  return WithCurves(std::move(small_problem));
}

std::vector<ChosenUnit> SmallGroups::FromPriced(
    const std::vector<ChosenUnit>& units) const {
  std::vector<ChosenUnit> all;
  for (const ChosenUnit& unit : units) all.push_back(WithSmall(unit, nullptr));
  return all;
}

std::vector<ChosenUnit> SmallGroups::Combined(
    const std::vector<ChosenUnit>& units,
    const std::vector<ChosenUnit>& small_units) const {
  std::vector<ChosenUnit> all;
  for (const ChosenUnit& unit : units) {
    const auto small =
        std::ranges::find(small_units, unit.node, &ChosenUnit::node);
    if (small != small_units.end()) all.push_back(WithSmall(unit, &*small));
  }
  return all;
}

// Returns a unit's counts of all kinds: the large ones as in `large`, the small
// ones as in `small` or, if there is none, recomputed if that is cheap.
ChosenUnit SmallGroups::WithSmall(const ChosenUnit& large,
                                  const ChosenUnit* small) const {
  const JointProblem::Policies& policies =
      problem_.policies[problem_.policies_of[large.node]];
  ChosenUnit unit{.node = large.node};
  if (!policies.points.empty()) {
    const size_t cluster = large.counts[0];
    const size_t place =
        small ? ClustersOf(policies.points, few_bytes_)[cluster] +
                    small->counts[0]
              : CheapPoints(policies.points)[cluster];
    unit.counts = {static_cast<int>(place)};
    unit.net_bytes = static_cast<double>(policies.BytesOf(unit.counts));
    return unit;
  }
  size_t next_large = 0;
  size_t next_small = 0;
  for (const GroupKind& kind : policies.kinds) {
    if (!IsSmall(kind)) {
      unit.counts.push_back(large.counts[next_large++]);
    } else if (small) {
      unit.counts.push_back(small->counts[next_small++]);
    } else {
      unit.counts.push_back(IsCheap(kind) ? kind.count : 0);
    }
  }
  unit.net_bytes = static_cast<double>(policies.BytesOf(unit.counts));
  return unit;
}

}  // namespace acplan::problems
