#include "graph/profile/pareto_list.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <utility>

namespace acplan::graph {
namespace {

// Bytes and run-time in fixed point.
struct Cost {
  int64_t bytes = 0;
  int64_t ticks = 0;

  auto operator<=>(const Cost&) const = default;
};

struct FreeGroups {
  // The cost that every policy has that no other one beats.
  Cost forced;
  std::vector<Cost> choices;  // both positive
  int exponent = 0;           // a tick is 2^exponent ms

  PolicyCost ToPolicyCost(const Cost& cost) const {
    return {cost.bytes, std::ldexp(static_cast<double>(cost.ticks), exponent)};
  }
};

FreeGroups Reduced(const OperatorGroups& groups) {
  FreeGroups free;
  double runtime = 0;
  for (const OperatorGroup& group : groups.groups) runtime += group.runtime;
  std::frexp(runtime, &free.exponent);
  free.exponent -= 51;
  for (const OperatorGroup& group : groups.groups) {
    const Cost cost{group.memory,
                    std::llround(std::ldexp(group.runtime, -free.exponent))};
    if (group.rule == GroupRule::kSave) {
      free.forced.bytes += cost.bytes;
    } else if (group.rule == GroupRule::kRecompute) {
      free.forced.ticks += cost.ticks;
    } else if (cost.bytes > 0 && cost.ticks > 0) {
      free.choices.push_back(cost);
    }
  }
  return free;
}

// Returns the list with one more group: each policy of the list saves it or recomputes it.
std::vector<Cost> WithGroup(const std::vector<Cost>& list, const Cost& group) {
  std::vector<Cost> merged;
  merged.reserve(2 * list.size());
  size_t recompute = 0;
  size_t save = 0;
  while (save < list.size()) {
    const Cost saved{list[save].bytes + group.bytes, list[save].ticks};
    Cost next = saved;
    if (recompute < list.size()) {
      const Cost recomputed{list[recompute].bytes,
                            list[recompute].ticks + group.ticks};
      next = std::min(saved, recomputed);
      recompute += recomputed == next ? 1 : 0;
    }
    save += saved == next ? 1 : 0;
    if (merged.empty() || next.ticks < merged.back().ticks) {
      merged.push_back(next);
    }
  }
  return merged;
}

// Returns the exact product as a sum of two doubles, the first one rounded. The larger pair
// is the larger product.
std::pair<double, double> Product(int64_t a, int64_t b) {
  const double x = static_cast<double>(a);
  const double y = static_cast<double>(b);
  return {x * y, std::fma(x, y, -(x * y))};
}

// Orders costs by bytes for each tick, the most first.
std::strong_ordering CompareRatio(const Cost& a, const Cost& b) {
  const auto left_product = Product(a.bytes, b.ticks);
  const auto right_product = Product(b.bytes, a.ticks);
  return left_product > right_product   ? std::strong_ordering::less
         : left_product < right_product ? std::strong_ordering::greater
                                        : std::strong_ordering::equal;
}

}  // namespace

ParetoList ComputeParetoList(const OperatorGroups& groups, size_t max_points) {
  FreeGroups free = Reduced(groups);
  // Equal groups follow each other, so that the lists stay short for longer.
  std::ranges::sort(free.choices);
  std::vector<Cost> list{free.forced};
  for (const Cost& choice : free.choices) {
    if (list.size() > max_points) break;
    list = WithGroup(list, choice);
  }
  if (list.size() > max_points) {
    return {.points = ParetoHull(groups), .is_complete = false};
  }
  ParetoList result;
  for (const Cost& cost : list) {
    result.points.push_back(free.ToPolicyCost(cost));
  }
  return result;
}

std::vector<PolicyCost> ParetoHull(const OperatorGroups& groups) {
  FreeGroups free = Reduced(groups);
  std::ranges::sort(free.choices, [](const Cost& a, const Cost& b) {
    return CompareRatio(a, b) < 0;
  });
  Cost cost = free.forced;
  for (const Cost& choice : free.choices) cost.bytes += choice.bytes;
  std::vector<PolicyCost> hull{free.ToPolicyCost(cost)};
  for (size_t i = 0; i < free.choices.size(); ++i) {
    const Cost& choice = free.choices[i];
    cost.bytes -= choice.bytes;
    cost.ticks += choice.ticks;
    // Groups of one ratio are on one edge.
    if (i + 1 < free.choices.size() &&
        CompareRatio(choice, free.choices[i + 1]) == 0) {
      continue;
    }
    hull.push_back(free.ToPolicyCost(cost));
  }
  std::ranges::reverse(hull);
  return hull;
}

}  // namespace acplan::graph
