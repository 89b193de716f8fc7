#include "problems/module_labels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "problems/convex_cost.h"
#include "problems/frontier.h"

namespace acplan::problems {

using solver::SearchLimits;
using solver::SearchProgress;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Proof tolerance, relative to the objective.
constexpr double kTolerance = 1e-9;

// The bytes of the problem in fixed point.
struct FixedProblem {
  double scale = 1;                           // fixed-point units a byte
  std::vector<std::vector<FixedKnot>> curve;  // a node
  std::vector<int64_t> held;
  std::vector<int64_t> need;          // at the node's own record; may be < 0
  std::vector<int64_t> subtree_need;  // largest over the subtree's records
  std::vector<char> has_units;        // any candidate in the subtree
  int64_t largest_need = 0;           // at least 0
};

FixedProblem ToFixedPoint(const ModuleProblem& problem) {
  const int n = static_cast<int>(problem.nodes.size());
  double total = std::abs(problem.budget_bytes) + 1;
  double largest_base = 0;
  for (const ModuleProblem::Node& node : problem.nodes) {
    if (!node.curve.empty()) {
      total += node.curve.back().bytes + 2 * node.held_bytes;
    }
    largest_base = std::max(largest_base, std::abs(node.base_bytes));
  }
  const int bits = std::ilogb(total + largest_base) + 1;
  FixedProblem fixed;
  fixed.scale = std::exp2(std::clamp(60 - bits, 0, 40));
  const auto down = [&](double bytes) {
    return static_cast<int64_t>(std::floor(bytes * fixed.scale));
  };
  const auto up = [&](double bytes) {
    return static_cast<int64_t>(std::ceil(bytes * fixed.scale));
  };

  fixed.curve.resize(n);
  fixed.held.assign(n, 0);
  // Low enough for no record, and far from overflow.
  constexpr int64_t kNoNeed = -(int64_t{1} << 61);
  fixed.need.assign(n, kNoNeed);
  fixed.subtree_need.assign(n, kNoNeed);
  fixed.has_units.assign(n, 0);
  for (int i = 0; i < n; ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    for (const Knot& knot : node.curve) {
      const int64_t bytes = down(knot.bytes);
      if (!fixed.curve[i].empty() && fixed.curve[i].back().bytes >= bytes) {
        continue;
      }
      fixed.curve[i].push_back({bytes, knot.ms});
    }
    if (!node.curve.empty()) fixed.held[i] = up(node.held_bytes);
    if (node.time >= 0) {
      fixed.need[i] = up(node.base_bytes - problem.budget_bytes);
    }
  }
  for (int i = n - 1; i >= 0; --i) {
    fixed.subtree_need[i] = std::max(fixed.subtree_need[i], fixed.need[i]);
    if (!fixed.curve[i].empty()) fixed.has_units[i] = 1;
    for (int c = i + 1; c < i + problem.nodes[i].subtree_size;
         c += problem.nodes[c].subtree_size) {
      fixed.subtree_need[i] =
          std::max(fixed.subtree_need[i], fixed.subtree_need[c]);
      if (fixed.has_units[c]) fixed.has_units[i] = 1;
    }
    if (!fixed.curve[i].empty()) {
      fixed.largest_need =
          std::max(fixed.largest_need, fixed.subtree_need[i] + fixed.held[i]);
    }
    fixed.largest_need = std::max(fixed.largest_need, fixed.subtree_need[i]);
  }
  return fixed;
}

// Lower bounds on the cost of the rest of the walk.
class CompletionBound {
 public:
  CompletionBound(const ModuleProblem& problem, const FixedProblem& fixed,
                  double unit_price)
      : problem_(problem), fixed_(fixed), unit_price_(unit_price) {
    after_.resize(problem.nodes.size());
    const auto nodes =
        static_cast<size_t>(std::ranges::count(fixed.has_units, char{1}));
    most_kept_ = std::clamp<size_t>(
        kMostKeptSegments / std::max<size_t>(nodes, 1), 256, kMostSegments);
    root_ = WalkSiblings(0, static_cast<int>(problem.nodes.size()),
                         ConvexCost::Free(fixed.largest_need));
  }

  // Of the whole walk.
  double AtRoot() const { return root_.At(fixed_.largest_need); }
  // After node i; only for nodes with candidates in their subtree.
  const ConvexCost& After(int i) const { return after_[i]; }
  double unit_price() const { return unit_price_; }

 private:
  ConvexCost WalkSiblings(int begin, int end, ConvexCost rest) {
    std::vector<int> siblings;
    for (int i = begin; i < end; i += problem_.nodes[i].subtree_size) {
      siblings.push_back(i);
    }
    std::ranges::reverse(siblings);
    for (const int i : siblings) {
      rest = Walk(i, std::move(rest));
    }
    return rest;
  }

  ConvexCost Walk(int i, ConvexCost rest) {
    const int64_t largest = fixed_.largest_need;
    if (!fixed_.has_units[i]) {
      rest.Truncate(largest - fixed_.subtree_need[i]);
      return rest;
    }
    after_[i] = rest;
    after_[i].Coarsen(most_kept_);
    ConvexCost as_unit;
    const bool is_candidate = !fixed_.curve[i].empty();
    if (is_candidate) {
      as_unit = rest.Plus(HullSegments(fixed_.curve[i], unit_price_));
      as_unit.Truncate(largest - fixed_.subtree_need[i] - fixed_.held[i]);
    }
    rest.Truncate(largest - fixed_.need[i]);
    rest = WalkSiblings(i + 1, i + problem_.nodes[i].subtree_size,
                        std::move(rest));
    if (is_candidate) rest = ConvexCost::HullOfMin(rest, as_unit);
    rest.Coarsen(kMostSegments);
    return rest;
  }

  // Of the bound that is carried along, where errors would add up, and of the
  // bounds that are kept for all nodes together.
  static constexpr size_t kMostSegments = 8192;
  static constexpr size_t kMostKeptSegments = 4'000'000;

  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  double unit_price_;
  size_t most_kept_ = 0;  // segments a node
  std::vector<ConvexCost> after_;
  ConvexCost root_;
};

// Says, given the labels made in this pass, whether to stop.
using Check = std::function<StoppedBy(int64_t)>;

struct PassResult {
  // The plan that was found, if one below the threshold was: nodes, and
  // fixed-point bytes discarded.
  std::optional<std::vector<std::pair<int, int64_t>>> units;
  double threshold = kInf;      // what cannot cost less was pruned
  double least_dropped = kInf;  // lower bound on all that the width dropped
  int64_t labels = 0;           // made
  StoppedBy stopped_by = StoppedBy::kNothing;

  bool IsComplete() const {
    return least_dropped == kInf && stopped_by == StoppedBy::kNothing;
  }
};

constexpr size_t kMovesBeforeForgetting = 1'000'000;

// A unit in a label's history; `value` and `shifted` as in a Piece.
struct Move {
  int64_t value;
  int32_t previous;
  int32_t unit;
  bool shifted;
};

// One pass over the forest. Its frontiers, one for each number of units with
// max_units, have as labels the last of the moves that led there; -1: none.
class Pass {
 public:
  Pass(const ModuleProblem& problem, const FixedProblem& fixed,
       const CompletionBound& bound, double threshold, size_t width,
       const Check& check)
      : problem_(problem),
        fixed_(fixed),
        bound_(bound),
        width_(width),
        check_(check) {
    result_.threshold = threshold;
  }

  PassResult Run() {
    const size_t counts =
        problem_.max_units ? static_cast<size_t>(*problem_.max_units) + 1 : 1;
    std::vector<Frontier> frontiers(counts);
    frontiers[0].push_back({.lo = 0,
                            .hi = 0,
                            .cost = 0,
                            .slope = 0,
                            .value = 0,
                            .label = -1,
                            .shifted = true,
                            .lo_is_vertex = true,
                            .hi_is_vertex = true});
    frontiers = WalkSiblings(0, static_cast<int>(problem_.nodes.size()),
                             std::move(frontiers));
    if (result_.stopped_by != StoppedBy::kNothing) return std::move(result_);
    const Piece* last = nullptr;
    for (const Frontier& f : frontiers) {
      if (!f.empty() && (!last || f.front().cost < last->cost)) {
        last = &f.front();
      }
    }
    // Unused units are credited in the bounds, so with max_units a label that
    // is no better than the best plan may get here.
    if (last && last->cost < result_.threshold) {
      result_.units = Backtrack(*last);
    }
    return std::move(result_);
  }

 private:
  std::vector<Frontier> WalkSiblings(int begin, int end,
                                     std::vector<Frontier> frontiers) {
    for (int i = begin; i < end && result_.stopped_by == StoppedBy::kNothing;
         i += problem_.nodes[i].subtree_size) {
      frontiers = WalkNode(i, std::move(frontiers));
    }
    return frontiers;
  }

  std::vector<Frontier> WalkNode(int i, std::vector<Frontier> frontiers) {
    if (!fixed_.has_units[i]) {
      CutAll(frontiers, fixed_.subtree_need[i]);
      return frontiers;
    }
    std::vector<Frontier> as_unit;
    if (!fixed_.curve[i].empty()) as_unit = AddUnit(i, frontiers);
    set_aside_.push_back(&as_unit);
    frontiers = WalkSiblings(i + 1, i + problem_.nodes[i].subtree_size,
                             std::move(frontiers));
    set_aside_.pop_back();
    CutAll(frontiers, fixed_.need[i]);
    for (size_t k = 0; k < as_unit.size(); ++k) {
      frontiers[k] = LowerEnvelope(frontiers[k], as_unit[k], Take::kBoth);
    }
    DropDearerCounts(frontiers);
    Prune(i, frontiers);
    Limit(i, frontiers);
    if (moves_.size() > most_moves_) ForgetMoves(frontiers);
    result_.stopped_by = check_(result_.labels);
    return frontiers;
  }

  // Drops the moves that no label's history needs any more.
  void ForgetMoves(std::vector<Frontier>& frontiers) {
    std::vector<std::vector<Frontier>*> live = set_aside_;
    live.push_back(&frontiers);
    const auto for_each_label = [&](auto apply) {
      for (std::vector<Frontier>* group : live) {
        for (Frontier& f : *group) {
          for (Piece& p : f) {
            if (p.label >= 0) apply(p.label);
          }
        }
      }
    };
    constexpr int32_t kForgotten = -2;
    constexpr int32_t kNeeded = -1;
    std::vector<int32_t> place(moves_.size(), kForgotten);
    for_each_label([&](int32_t label) { place[label] = kNeeded; });
    for (size_t m = moves_.size(); m-- > 0;) {
      if (place[m] == kNeeded && moves_[m].previous >= 0) {
        place[moves_[m].previous] = kNeeded;
      }
    }
    size_t kept = 0;
    for (size_t m = 0; m < moves_.size(); ++m) {
      if (place[m] == kForgotten) continue;
      place[m] = static_cast<int32_t>(kept);
      Move move = moves_[m];
      if (move.previous >= 0) move.previous = place[move.previous];
      moves_[kept++] = move;
    }
    moves_.resize(kept);
    for_each_label([&](int32_t& label) { label = place[label]; });
    most_moves_ = std::max(kMovesBeforeForgetting, 2 * kept);
  }

  static void CutAll(std::vector<Frontier>& frontiers, int64_t need) {
    for (Frontier& f : frontiers) Cut(f, need);
  }

  std::vector<Frontier> AddUnit(int i, const std::vector<Frontier>& frontiers) {
    const bool counted = problem_.max_units.has_value();
    std::vector<Frontier> result(frontiers.size());
    for (size_t k = 0; k + (counted ? 1 : 0) < frontiers.size(); ++k) {
      Frontier start = frontiers[k];
      Cut(start, fixed_.subtree_need[i] + fixed_.held[i]);
      if (start.empty()) continue;
      result[k + (counted ? 1 : 0)] = AddCurve(fixed_.curve[i], start);
    }
    Prune(i, result);
    for (Frontier& f : result) {
      for (Piece& p : f) {
        moves_.push_back({p.value, p.label, i, p.shifted});
        p.label = static_cast<int32_t>(moves_.size()) - 1;
      }
      result_.labels += static_cast<int64_t>(f.size());
    }
    return result;
  }

  // With a limit on the units, more of them are worth keeping only where they
  // cost less.
  static void DropDearerCounts(std::vector<Frontier>& frontiers) {
    if (frontiers.size() <= 1) return;
    Frontier least = frontiers[0];
    for (size_t k = 1; k < frontiers.size(); ++k) {
      frontiers[k] = LowerEnvelope(frontiers[k], least, Take::kFirst);
      least = LowerEnvelope(least, frontiers[k], Take::kBoth);
    }
  }

  double BoundOf(int i, size_t count, const Piece& p) const {
    double credit = 0;
    if (problem_.max_units) {
      credit =
          bound_.unit_price() *
          static_cast<double>(*problem_.max_units - static_cast<int>(count));
    }
    return bound_.After(i).LeastSum(p.lo, p.hi, p.cost, p.slope,
                                    fixed_.largest_need) -
           credit;
  }

  void Prune(int i, std::vector<Frontier>& frontiers) const {
    const int64_t total = fixed_.largest_need;
    const int64_t least = total - bound_.After(i).end();
    for (size_t k = 0; k < frontiers.size(); ++k) {
      Frontier& f = frontiers[k];
      size_t kept = 0;
      for (size_t j = 0; j < f.size(); ++j) {
        Piece p = f[j];
        if (p.hi < least) continue;
        if (p.lo < least) {
          p.cost = p.CostAt(least);
          p.lo = least;
          // Only cut off by a bound: no record binds here, so no unit between
          // knots need start from here.
          p.lo_is_vertex = false;
        }
        if (BoundOf(i, k, p) < result_.threshold) f[kept++] = p;
        // Beyond the largest need, the first piece is the cheapest.
        if (p.lo >= total) break;
      }
      f.resize(kept);
    }
  }

  void Limit(int i, std::vector<Frontier>& frontiers) {
    size_t total = 0;
    for (const Frontier& f : frontiers) total += f.size();
    if (total <= width_) return;
    struct Ranked {
      double bound;
      size_t count, index;
    };
    std::vector<Ranked> ranked;
    ranked.reserve(total);
    for (size_t k = 0; k < frontiers.size(); ++k) {
      for (size_t j = 0; j < frontiers[k].size(); ++j) {
        // The piece that has discarded most is never dropped: where it cannot
        // meet the records to come, nothing can. So the first pass, which
        // prunes nothing for its cost, finds a plan if there is one.
        const bool last = j + 1 == frontiers[k].size();
        ranked.push_back({last ? -kInf : BoundOf(i, k, frontiers[k][j]), k, j});
      }
    }
    const auto by_bound = [](const Ranked& r, const Ranked& s) {
      return std::tie(r.bound, r.count, r.index) <
             std::tie(s.bound, s.count, s.index);
    };
    std::nth_element(ranked.begin(),
                     ranked.begin() + static_cast<std::ptrdiff_t>(width_),
                     ranked.end(), by_bound);
    std::vector<std::vector<char>> keep(frontiers.size());
    for (size_t k = 0; k < frontiers.size(); ++k) {
      keep[k].assign(frontiers[k].size(), 0);
    }
    for (size_t r = 0; r < ranked.size(); ++r) {
      if (r < width_ || ranked[r].bound == -kInf) {
        keep[ranked[r].count][ranked[r].index] = 1;
      } else {
        result_.least_dropped =
            std::min(result_.least_dropped, ranked[r].bound);
      }
    }
    for (size_t k = 0; k < frontiers.size(); ++k) {
      size_t kept = 0;
      for (size_t j = 0; j < frontiers[k].size(); ++j) {
        if (keep[k][j]) frontiers[k][kept++] = frontiers[k][j];
      }
      frontiers[k].resize(kept);
    }
  }

  std::vector<std::pair<int, int64_t>> Backtrack(const Piece& last) const {
    std::vector<std::pair<int, int64_t>> units;
    int64_t bytes = last.lo;
    for (int32_t label = last.label; label >= 0;) {
      const Move& move = moves_[label];
      const int64_t amount = move.shifted ? move.value : bytes - move.value;
      units.emplace_back(move.unit, amount);
      bytes -= amount;
      label = move.previous;
    }
    std::ranges::reverse(units);
    return units;
  }

  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  const CompletionBound& bound_;
  size_t width_;
  const Check& check_;
  // Units set aside while their children are walked.
  std::vector<std::vector<Frontier>*> set_aside_;
  std::vector<Move> moves_;
  size_t most_moves_ = kMovesBeforeForgetting;
  PassResult result_;
};

// Walks the forest once, keeping about `width` pieces at most, for plans that
// cost less than `best` by more than `gap` of it.
PassResult RunPass(const ModuleProblem& problem, const FixedProblem& fixed,
                   const CompletionBound& bound, double best, double gap,
                   size_t width, const Check& check) {
  const double threshold = best == kInf ? kInf
                                        : best - std::max(gap, kTolerance) *
                                                     std::max(best, kTolerance);
  return Pass(problem, fixed, bound, threshold, width, check).Run();
}

// The price of a unit for which the root bound under max_units is largest.
double BestUnitPrice(const ModuleProblem& problem, const FixedProblem& fixed) {
  if (!problem.max_units) return 0;
  const auto bound = [&](double price) {
    return CompletionBound(problem, fixed, price).AtRoot() -
           price * *problem.max_units;
  };
  double low = 0;
  double high = 1e-3;
  double at_high = bound(high);
  for (double best = bound(0); at_high > best && high < 1e12;) {
    best = at_high;
    high *= 4;
    at_high = bound(high);
  }
  constexpr double kGolden = 0.6180339887498949;
  double a = high - kGolden * (high - low);
  double b = low + kGolden * (high - low);
  double at_a = bound(a);
  double at_b = bound(b);
  for (int step = 0; step < 30; ++step) {
    if (at_a >= at_b) {
      high = b;
      b = a;
      at_b = at_a;
      a = high - kGolden * (high - low);
      at_a = bound(a);
    } else {
      low = a;
      a = b;
      at_a = at_b;
      b = low + kGolden * (high - low);
      at_b = bound(b);
    }
  }
  return at_a >= at_b ? a : b;
}

ModuleSolution Solve(const ModuleProblem& problem, const SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  ModuleSolution solution;
  solution.engine = "labels";
  solution.columns = std::ranges::count_if(
      problem.nodes, [](const auto& node) { return !node.curve.empty(); });
  solution.rows = std::ranges::count_if(problem.nodes, [&](const auto& node) {
    return node.time >= 0 && node.base_bytes > problem.budget_bytes;
  });

  const FixedProblem fixed = ToFixedPoint(problem);
  const double unit_price = BestUnitPrice(problem, fixed);
  const CompletionBound bound(problem, fixed, unit_price);
  const double root_bound =
      bound.AtRoot() - unit_price * problem.max_units.value_or(0);
  if (problem.fixed_bytes > problem.budget_bytes || root_bound == kInf) {
    solution.status = SearchStatus::kInfeasible;
    solution.bound_ms = kInf;
    solution.seconds = stopwatch.Seconds();
    return solution;
  }

  double best = kInf;
  double proven = std::max(0.0, root_bound);
  int64_t labels = 0;
  const auto close_enough = [&](double gap) {
    return best - proven <= gap * std::max(best, kTolerance);
  };
  double last_report = 0;
  const Check check = [&](int64_t pass_labels) {
    const double seconds = stopwatch.Seconds();
    if (limits.on_progress && seconds - last_report > 0.1) {
      last_report = seconds;
      limits.on_progress({.best = best,
                          .bound = proven,
                          .nodes = labels + pass_labels,
                          .seconds = seconds});
    }
    if (limits.interrupted && limits.interrupted->load()) {
      return StoppedBy::kInterrupt;
    }
    if (seconds > limits.time_limit_s) return StoppedBy::kTime;
    if (labels + pass_labels > limits.node_limit) return StoppedBy::kNodes;
    return StoppedBy::kNothing;
  };

  constexpr std::array<size_t, 5> kWidths = {
      64, 1024, 16384, 262144, std::numeric_limits<size_t>::max()};
  for (const size_t width : kWidths) {
    const PassResult pass =
        RunPass(problem, fixed, bound, best, limits.gap, width, check);
    labels += pass.labels;
    if (pass.stopped_by != StoppedBy::kNothing) {
      solution.stopped_by = pass.stopped_by;
      break;
    }
    if (pass.units) {
      std::vector<ChosenUnit> units;
      for (const auto& [node, bytes] : *pass.units) {
        units.push_back({node, static_cast<double>(bytes) / fixed.scale});
      }
      solution.units = WithoutNeedlessUnits(problem, std::move(units));
      best = SolutionCost(problem, solution.units);
    }
    // What is cheaper than the best plan was dropped; what was pruned is not
    // cheaper than the threshold.
    proven = std::max(proven, std::min({pass.units ? best : pass.threshold,
                                        pass.threshold, pass.least_dropped}));
    if (pass.IsComplete() || close_enough(std::max(limits.gap, kTolerance))) {
      break;
    }
  }

  solution.nodes = labels;
  solution.seconds = stopwatch.Seconds();
  if (best == kInf) {
    solution.bound_ms = proven;
    if (solution.stopped_by == StoppedBy::kNothing) {
      solution.status = SearchStatus::kInfeasible;
      solution.bound_ms = kInf;
    }
    return solution;
  }
  solution.ms = best;
  if (close_enough(2 * kTolerance)) {
    solution.status = SearchStatus::kOptimal;
    solution.stopped_by = StoppedBy::kNothing;
    solution.bound_ms = best;
  } else {
    solution.status = SearchStatus::kFeasible;
    if (solution.stopped_by == StoppedBy::kNothing) {
      if (limits.gap <= kTolerance) {
        throw std::logic_error("SolveByLabels: the last pass proved nothing");
      }
      solution.stopped_by = StoppedBy::kGap;
    }
    solution.bound_ms = std::min(proven, best);
  }
  return solution;
}

}  // namespace

ModuleSolution SolveByLabels(const ModuleProblem& problem,
                             const SearchLimits& limits) {
  if (!problem.prefix_structure) {
    throw std::invalid_argument(
        "SolveByLabels: the problem has no prefix structure");
  }
  return SolveWithScaledTimes(problem, limits, Solve);
}

}  // namespace acplan::problems
