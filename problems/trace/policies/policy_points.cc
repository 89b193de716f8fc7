// How relaxed policies and exact ones become one list.
//
// A relaxed point stands for policies that discard at most as much as it does. If they
// discard more than the point before it, they cost no less than it does, since
// rounding makes policies discard more. Where they are also known to cost more, by
// what they discard, points with more ms take its place, each for the policies that
// discard more than the one before. Then what another point beats goes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "problems/trace/policies/need_policies.h"

namespace acplan::problems {

namespace {

// Points that take the place of one that is too cheap.
constexpr int64_t kMostRaised = 64;

// Points for the policies of a relaxed one that discard more than `before`.
std::vector<PolicyPoint> RaisedPoints(const PolicyPoint& point, int64_t before,
                                      const NeedPolicies::Others& others) {
  const auto& least_after = others.least_ms;
  if (least_after(point.bytes) <= point.ms) return {point};
  // The last place up to which such policies may cost at most so much.
  const auto place_of = [&](double ms) {
    int64_t first = before;
    int64_t end = point.bytes;
    while (end - first > 1) {
      const int64_t middle = first + (end - first) / 2;
      (least_after(middle) <= ms ? first : end) = middle;
    }
    return first;
  };
  const int64_t first = place_of(std::max(
      point.ms,
      others.most_ms - static_cast<double>(kMostRaised) * others.step_ms));
  const int64_t end = place_of(others.most_ms) + 1;
  const double rise = std::min(others.most_ms, least_after(end)) - point.ms;
  const auto steps = std::clamp<int64_t>(
      static_cast<int64_t>(std::min(rise / others.step_ms, 1e6)), 1,
      kMostRaised);
  std::vector<PolicyPoint> raised;
  int64_t last = before;
  const auto add = [&](int64_t bytes) {
    if (bytes <= last) return;
    raised.push_back({bytes, std::max(point.ms, least_after(last + 1))});
    last = bytes;
  };
  add(first);
  for (int64_t k = 1; k <= steps; ++k) add(first + (end - first) * k / steps);
  add(point.bytes);
  return raised;
}

}  // namespace

GroupUses NeedPolicies::UsesOf(size_t point) const {
  if (coarse_ && of_coarse_[point] >= 0) {
    return coarse_->UsesOf(of_coarse_[point]);
  }
  return list_.paths.UsesOf(list_.last_move[point], list_.group_of_step,
                            groups_);
}

size_t NeedPolicies::MemoryBytes() const {
  return list_.points.size() *
             (sizeof(PolicyPoint) + sizeof(MoveId) + sizeof(int32_t)) +
         list_.paths.MemoryBytes() +
         list_.group_of_step.size() * sizeof(graph::GroupId);
}

NeedPolicies NeedPolicies::WithExact(std::shared_ptr<const NeedPolicies> coarse,
                                     List exact, const Others& others) {
  struct Place {
    PolicyPoint point;
    MoveId last_move = graph::kNone;
    int32_t of_coarse = -1;
  };
  std::vector<Place> places;
  for (size_t p = 0; p < exact.points.size(); ++p) {
    places.push_back({exact.points[p], exact.last_move[p]});
  }
  const std::vector<PolicyPoint>& points = coarse->points();
  for (size_t p = 0; p < points.size(); ++p) {
    const int64_t before = p > 0 ? points[p - 1].bytes : others.least_bytes;
    for (const PolicyPoint& point : RaisedPoints(points[p], before, others)) {
      places.push_back({point, graph::kNone, static_cast<int32_t>(p)});
    }
  }
  std::ranges::stable_sort(places, [](const Place& a, const Place& b) {
    return a.point.ms != b.point.ms ? a.point.ms < b.point.ms
                                    : a.point.bytes > b.point.bytes;
  });
  NeedPolicies result({}, coarse->groups_, false);
  result.list_.paths = std::move(exact.paths);
  result.list_.group_of_step = std::move(exact.group_of_step);
  for (const Place& place : places) {
    std::vector<PolicyPoint>& list = result.list_.points;
    if (!list.empty() && place.point.bytes <= list.back().bytes) {
      // The exact one of two that are the same but for rounding.
      const bool is_same = place.of_coarse < 0 &&
                           result.of_coarse_.back() >= 0 &&
                           place.point.bytes == list.back().bytes &&
                           place.point.ms <= list.back().ms * (1 + 1e-12);
      if (!is_same) continue;
      result.list_.last_move.back() = place.last_move;
      result.of_coarse_.back() = place.of_coarse;
      continue;
    }
    list.push_back(place.point);
    result.list_.last_move.push_back(place.last_move);
    result.of_coarse_.push_back(place.of_coarse);
  }
  result.coarse_ = std::move(coarse);
  return result;
}

}  // namespace acplan::problems
