#include "problems/model/module_solution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace acplan::problems {

namespace {

// A record's time and the bytes in use then.
struct RecordBytes {
  int time;
  double bytes;
};

// Returns the bytes in use at every record, in time order.
std::vector<RecordBytes> BytesByTime(const ModuleProblem& problem,
                                     const std::vector<ChosenUnit>& units) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<double> bytes(n);
  for (int i = 0; i < n; ++i) bytes[i] = problem.nodes[i].base_bytes;
  std::vector<double> discarded_at(n + 1, 0);
  for (const ChosenUnit& unit : units) {
    const ModuleProblem::Node& node = problem.nodes[unit.node];
    discarded_at[node.time] += unit.net_bytes;
    for (int i = unit.node; i < unit.node + node.subtree_size; ++i) {
      bytes[i] = node.unit_base_bytes.value_or(bytes[i]) + node.held_bytes;
    }
  }
  std::vector<RecordBytes> records;
  for (int i = 0; i < n; ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    if (node.time >= 0) records.push_back({node.time, bytes[i]});
  }
  std::ranges::sort(records, {}, &RecordBytes::time);
  long double discarded = 0;
  for (RecordBytes& record : records) {
    record.bytes = static_cast<double>(record.bytes - discarded);
    discarded += discarded_at[record.time];
  }
  return records;
}

}  // namespace

ModuleSolution SolveWithScaledTimes(const ModuleProblem& problem,
                                    const solver::SearchLimits& limits,
                                    const SolveModuleProblem& solve) {
  return SolveWithTimeFactor(problem, limits,
                             [&](double, const ModuleProblem& scaled,
                                 const solver::SearchLimits& scaled_limits) {
                               return solve(scaled, scaled_limits);
                             });
}

ModuleSolution SolveWithTimeFactor(const ModuleProblem& problem,
                                   const solver::SearchLimits& limits,
                                   const SolveScaled& solve) {
  double dearest = 0;
  for (const ModuleProblem::Node& node : problem.nodes) {
    if (!node.curve.empty()) {
      dearest = std::max(dearest, node.curve.back().ms);
    }
  }
  const double factor =
      dearest > 0 ? std::exp2(std::round(std::log2(1000 / dearest))) : 1;

  ModuleProblem scaled = problem;
  for (ModuleProblem::Node& node : scaled.nodes) {
    for (Knot& knot : node.curve) knot.ms *= factor;
  }
  solver::SearchLimits scaled_limits = limits;
  scaled_limits.cut_off *= factor;
  if (limits.on_progress) {
    scaled_limits.on_progress = [&](solver::SearchProgress progress) {
      progress.best /= factor;
      progress.bound /= factor;
      limits.on_progress(progress);
    };
  }
  const bool may_be_empty =
      std::ranges::none_of(problem.nodes, &ModuleProblem::Node::must_be_unit);
  if (may_be_empty && SolutionPeak(problem, {}) <= problem.budget_bytes) {
    // There is nothing to search for.
    scaled_limits.time_limit_s = std::numeric_limits<double>::infinity();
    scaled_limits.node_limit = std::numeric_limits<int64_t>::max();
    scaled_limits.interrupted = nullptr;
    for (ModuleProblem::Node& node : scaled.nodes) node.curve.clear();
  }
  ModuleSolution solution = solve(factor, std::move(scaled), scaled_limits);
  solution.ms /= factor;
  solution.bound_ms /= factor;
  return solution;
}

double ByteTolerance(const ModuleProblem& problem) {
  return 1e-9 + 1e-14 * std::abs(problem.budget_bytes);
}

double SolutionCost(const ModuleProblem& problem,
                    const std::vector<ChosenUnit>& units) {
  double ms = 0;
  for (const ChosenUnit& unit : units) {
    ms += CurveCost(problem.nodes[unit.node].curve, unit.net_bytes);
  }
  return ms;
}

double SolutionPeak(const ModuleProblem& problem,
                    const std::vector<ChosenUnit>& units) {
  double peak = problem.fixed_bytes;
  for (const RecordBytes& record : BytesByTime(problem, units)) {
    peak = std::max(peak, record.bytes);
  }
  return peak;
}

std::optional<std::vector<ChosenUnit>> CheapestBytes(
    const ModuleProblem& problem, const std::vector<int>& unit_nodes) {
  std::vector<ChosenUnit> units;
  units.reserve(unit_nodes.size());
  for (const int node : unit_nodes) {
    units.push_back({node, problem.nodes[node].curve.front().bytes});
  }
  if (problem.fixed_bytes > problem.budget_bytes) return std::nullopt;
  std::ranges::sort(units, {}, [&](const ChosenUnit& unit) {
    return problem.nodes[unit.node].time;
  });

  struct Stretch {  // a piece of a curve, from knot to knot
    double slope;
    size_t unit, knot;
    bool operator>(const Stretch& other) const {
      return std::tie(slope, unit) > std::tie(other.slope, other.unit);
    }
  };
  std::priority_queue<Stretch, std::vector<Stretch>, std::greater<>> at_hand;
  const auto offer = [&](size_t unit, size_t knot) {
    const std::vector<Knot>& curve = problem.nodes[units[unit].node].curve;
    if (knot + 1 >= curve.size()) return;
    at_hand.push({(curve[knot + 1].ms - curve[knot].ms) /
                      (curve[knot + 1].bytes - curve[knot].bytes),
                  unit, knot});
  };
  size_t next = 0;
  double added_bytes =
      0;  // beyond the first knots, by units that have finished
  for (const RecordBytes& record : BytesByTime(problem, units)) {
    for (; next < units.size() &&
           problem.nodes[units[next].node].time < record.time;
         ++next) {
      offer(next, 0);
    }
    double missing = record.bytes - added_bytes - problem.budget_bytes;
    while (missing > ByteTolerance(problem)) {
      if (at_hand.empty()) return std::nullopt;
      const Stretch stretch = at_hand.top();
      ChosenUnit& unit = units[stretch.unit];
      const double end = problem.nodes[unit.node].curve[stretch.knot + 1].bytes;
      const double room = end - unit.net_bytes;
      const double taken_bytes = std::min(room, missing);
      added_bytes += taken_bytes;
      missing -= taken_bytes;
      if (taken_bytes == room) {
        unit.net_bytes = end;
        at_hand.pop();
        offer(stretch.unit, stretch.knot + 1);
      } else {
        unit.net_bytes += taken_bytes;
      }
    }
  }
  std::ranges::sort(units, {}, &ChosenUnit::node);
  return units;
}

std::vector<ChosenUnit> WithoutNeedlessUnits(const ModuleProblem& problem,
                                             std::vector<ChosenUnit> units) {
  const auto cost = [&](const ChosenUnit& unit) {
    return CurveCost(problem.nodes[unit.node].curve, unit.net_bytes);
  };
  std::ranges::stable_sort(
      units, [&](const ChosenUnit& a, const ChosenUnit& b) {
        return std::pair(cost(a), problem.nodes[a.node].time) >
               std::pair(cost(b), problem.nodes[b.node].time);
      });
  // Returns, by time, the slack of the tightest record from then on.
  const auto slack_after = [&] {
    const std::vector<RecordBytes> records = BytesByTime(problem, units);
    std::vector<double> slack(problem.nodes.size() + 1,
                              std::numeric_limits<double>::infinity());
    for (const RecordBytes& record : records) {
      slack[record.time] = problem.budget_bytes - record.bytes;
    }
    for (size_t t = slack.size() - 1; t-- > 0;) {
      slack[t] = std::min(slack[t], slack[t + 1]);
    }
    return slack;
  };
  std::vector<double> slack = slack_after();
  for (size_t k = 0; k < units.size();) {
    const int time = problem.nodes[units[k].node].time;
    if (!problem.nodes[units[k].node].must_be_unit &&
        slack[time + 1] + ByteTolerance(problem) >= units[k].net_bytes) {
      // A unit also replaces the records in its subtree.
      std::vector<ChosenUnit> all_units = units;
      units.erase(units.begin() + static_cast<std::ptrdiff_t>(k));
      std::vector<double> slack_without = slack_after();
      if (slack_without.front() + ByteTolerance(problem) >=
          std::min(0.0, slack.front())) {
        slack = std::move(slack_without);
        continue;
      }
      units = std::move(all_units);
    }
    ++k;
  }
  std::ranges::sort(units, {}, &ChosenUnit::node);
  return units;
}

}  // namespace acplan::problems
