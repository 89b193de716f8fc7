#include "problems/engines/labels/module_labels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "problems/engines/labels/completion_bound.h"
#include "problems/engines/labels/forest_walk.h"
#include "problems/engines/labels/label_passes.h"
#include "solver/infinity.h"
#include "solver/labels/convex_cost.h"
#include "solver/labels/cost_frontier.h"
#include "solver/labels/label_history.h"

// The walk over the forest (forest_walk.h) carries E(D), the least cost of
// having discarded D bytes so far: a frontier of points and segments, one for
// each number of units if max_units limits it. A unit adds its convex curve to
// every point (cost_frontier.h: AddCurve), which is the lower envelope of E
// moved to each knot and of each vertex of E followed by each piece of the
// curve.
//
// Invariant: at every module, the frontier together with the pieces that were
// dropped for the width contains the beginning of a cheapest plan, if one costs
// less than the threshold. A piece is dropped if another has at least its bytes
// for at most its cost, if a record asks for more bytes than it has, or if its
// cost and the completion bound Q (completion_bound.h) reach the threshold.
//
// A piece records its origin in a way that holds for any part of it: either it
// was moved by a knot, or it comes from one vertex. So a plan can be read off
// any point, back from the last unit to the first.

namespace acplan::problems {

using solver::AddCurve;
using solver::CostFrontier;
using solver::Cut;
using solver::FrontierPiece;
using solver::kInfinity;
using solver::LabelHistory;
using solver::LowerEnvelope;
using solver::Take;

using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kFinestScale = 0x1p40;

// A unit in a label's history; `value` and `shifted` as in a FrontierPiece.
struct Move {
  int64_t value;
  int32_t previous;
  int32_t unit;
  bool shifted;
};

using Frontiers = LabelsByCount<CostFrontier>;

// The bounds of a pass: they determine which pieces may be part of a plan that
// costs less than its threshold.
class PieceBounds {
 public:
  PieceBounds(const ModuleProblem& problem, const FixedProblem& fixed,
              const CompletionBound& bound, double threshold)
      : problem_(problem),
        fixed_(fixed),
        bound_(bound),
        threshold_(threshold) {}

  double threshold() const { return threshold_; }

  // Returns the bound on all plans that begin with a point of the piece.
  // `count` is the number of its units.
  double BoundAfter(int node, size_t count, const FrontierPiece& p) const {
    double credit = 0;
    if (problem_.max_units) {
      credit =
          bound_.unit_price() *
          static_cast<double>(*problem_.max_units - static_cast<int>(count));
    }
    return bound_.After(node).LeastSum(p.lo, p.hi, p.cost, p.slope,
                                       fixed_.largest_need) -
           credit;
  }

  void Prune(int node, Frontiers& frontiers) const {
    const int64_t total = fixed_.largest_need;
    const int64_t least = total - bound_.After(node).end();
    for (size_t k = 0; k < frontiers.size(); ++k) {
      CostFrontier& f = frontiers[k];
      size_t kept_count = 0;
      for (size_t j = 0; j < f.size(); ++j) {
        FrontierPiece p = f[j];
        if (p.hi < least) continue;
        if (p.lo < least) {
          p.cost = p.CostAt(least);
          p.lo = least;
          // A bound cut the piece here, not a record, so no unit between knots
          // need start from here.
          p.lo_is_vertex = false;
        }
        if (BoundAfter(node, k, p) < threshold_) f[kept_count++] = p;
        // Beyond the largest need, the first piece is the cheapest.
        if (p.lo >= total) break;
      }
      f.resize(kept_count);
    }
  }

 private:
  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  const CompletionBound& bound_;
  double threshold_;
};

// A piece with its rank in a limit on the number of pieces.
struct RankedPiece {
  double bound;
  size_t count, index;
};

std::vector<RankedPiece> Ranked(const PieceBounds& bounds, int node,
                                const Frontiers& frontiers) {
  std::vector<RankedPiece> ranked;
  for (size_t k = 0; k < frontiers.size(); ++k) {
    for (size_t j = 0; j < frontiers[k].size(); ++j) {
      // The piece that has discarded most is never dropped: if it cannot meet
      // the records to come, no piece can. So the first pass, which prunes
      // nothing for its cost, finds a plan if there is one.
      const bool last = j + 1 == frontiers[k].size();
      ranked.push_back(
          {last ? -kInfinity : bounds.BoundAfter(node, k, frontiers[k][j]), k,
           j});
    }
  }
  return ranked;
}

// Keeps the `width` most promising pieces, and returns a lower bound on the
// cost of the dropped ones.
double CutToWidth(size_t width, std::vector<RankedPiece> ranked,
                  Frontiers& frontiers) {
  const auto by_bound = [](const RankedPiece& r, const RankedPiece& s) {
    return std::tie(r.bound, r.count, r.index) <
           std::tie(s.bound, s.count, s.index);
  };
  std::nth_element(ranked.begin(),
                   ranked.begin() + static_cast<std::ptrdiff_t>(width),
                   ranked.end(), by_bound);
  std::vector<std::vector<char>> keep(frontiers.size());
  for (size_t k = 0; k < frontiers.size(); ++k) {
    keep[k].assign(frontiers[k].size(), 0);
  }
  double least_dropped = kInfinity;
  for (size_t r = 0; r < ranked.size(); ++r) {
    if (r < width || ranked[r].bound == -kInfinity) {
      keep[ranked[r].count][ranked[r].index] = 1;
    } else {
      least_dropped = std::min(least_dropped, ranked[r].bound);
    }
  }
  for (size_t k = 0; k < frontiers.size(); ++k) {
    size_t kept_count = 0;
    for (size_t j = 0; j < frontiers[k].size(); ++j) {
      if (keep[k][j]) frontiers[k][kept_count++] = frontiers[k][j];
    }
    frontiers[k].resize(kept_count);
  }
  return least_dropped;
}

// Drops pieces that another one with fewer units beats: under a limit on the
// units, more of them are worth keeping only if they cost less.
void DropDearerCounts(Frontiers& frontiers) {
  if (frontiers.size() <= 1) return;
  CostFrontier least = frontiers[0];
  for (size_t k = 1; k < frontiers.size(); ++k) {
    frontiers[k] = LowerEnvelope(frontiers[k], least, Take::kFirst);
    least = LowerEnvelope(least, frontiers[k], Take::kBoth);
  }
}

// The rules of the walk. The label of a piece is the last of the moves that led
// to it; -1: none.
class ModulePass {
 public:
  using Labels = CostFrontier;

  ModulePass(const ModuleProblem& problem, const FixedProblem& fixed,
             const PieceBounds& bounds, size_t width, const PassCheck& check)
      : problem_(problem),
        fixed_(fixed),
        bounds_(bounds),
        width_(width),
        check_(check) {}

  PassResult Run() {
    ForestWalk walk(problem_, fixed_, *this);
    const Frontiers frontiers = walk.Run({{.lo = 0,
                                           .hi = 0,
                                           .cost = 0,
                                           .slope = 0,
                                           .value = 0,
                                           .label = -1,
                                           .shifted = true,
                                           .lo_is_vertex = true,
                                           .hi_is_vertex = true}});
    if (IsStopped()) return std::move(result_);
    const FrontierPiece* last = nullptr;
    for (const CostFrontier& f : frontiers) {
      if (!f.empty() && (!last || f.front().cost < last->cost)) {
        last = &f.front();
      }
    }
    // Unused units are credited in the bounds, so with max_units a label that
    // is no better than the best plan may get here.
    if (last && last->cost < bounds_.threshold()) {
      result_.units = Backtrack(*last);
    }
    return std::move(result_);
  }

  bool IsStopped() const { return result_.stopped_by != StoppedBy::kNothing; }

  bool IsCandidate(int node) const { return !fixed_.curve[node].empty(); }

  static void CutTo(int64_t need, CostFrontier& frontier) {
    Cut(frontier, need);
  }

  Frontiers AddUnit(int node, const Frontiers& before) {
    const size_t added_units = problem_.max_units ? 1 : 0;
    Frontiers as_unit(before.size());
    for (size_t k = 0; k + added_units < before.size(); ++k) {
      CostFrontier start = before[k];
      Cut(start, fixed_.unit_need[node]);
      if (start.empty()) continue;
      as_unit[k + added_units] = AddCurve(fixed_.curve[node], start);
    }
    bounds_.Prune(node, as_unit);
    for (CostFrontier& f : as_unit) {
      for (FrontierPiece& p : f) {
        p.label = history_.Add({p.value, p.label, node, p.shifted});
      }
      result_.labels += static_cast<int64_t>(f.size());
    }
    return as_unit;
  }

  static Frontiers Required(int /*node*/, Frontiers as_unit) { return as_unit; }

  Frontiers Join(int node, Frontiers frontiers, const Frontiers& as_unit) {
    if (IsCandidate(node)) {
      for (size_t k = 0; k < as_unit.size(); ++k) {
        frontiers[k] = LowerEnvelope(frontiers[k], as_unit[k], Take::kBoth);
      }
    }
    DropDearerCounts(frontiers);
    bounds_.Prune(node, frontiers);
    Limit(node, frontiers);
    return frontiers;
  }

  void EndNode(const LiveLabels<CostFrontier>& live) {
    if (history_.IsLong()) Forget(live);
    if (IsStopped()) return;
    result_.stopped_by =
        history_.IsFull() ? StoppedBy::kMemory : check_(result_.labels);
  }

 private:
  void Limit(int node, Frontiers& frontiers) {
    size_t total = 0;
    for (const CostFrontier& f : frontiers) total += f.size();
    if (total <= width_) return;
    result_.least_dropped = std::min(
        result_.least_dropped,
        CutToWidth(width_, Ranked(bounds_, node, frontiers), frontiers));
  }

  // Drops the moves that no label's history needs any more.
  void Forget(const LiveLabels<CostFrontier>& live) {
    history_.Forget([&](auto apply) {
      for (Frontiers* frontiers : live) {
        for (CostFrontier& f : *frontiers) {
          for (FrontierPiece& p : f) {
            if (p.label >= 0) apply(p.label);
          }
        }
      }
    });
  }

  std::vector<ChosenUnit> Backtrack(const FrontierPiece& last) const {
    std::vector<ChosenUnit> units;
    int64_t bytes = last.lo;
    for (int32_t label = last.label; label >= 0;) {
      const Move& move = history_[label];
      const int64_t amount = move.shifted ? move.value : bytes - move.value;
      units.push_back({move.unit, static_cast<double>(amount) / fixed_.scale});
      bytes -= amount;
      label = move.previous;
    }
    std::ranges::reverse(units);
    return units;
  }

  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  const PieceBounds& bounds_;
  size_t width_;
  const PassCheck& check_;
  LabelHistory<Move> history_;
  PassResult result_;
};

ModuleSolution Solve(const ModuleProblem& problem, const SearchLimits& limits,
                     const std::vector<ChosenUnit>& known_units) {
  const FixedProblem fixed = ToFixedPoint(problem, kFinestScale);
  const double unit_price = BestUnitPrice(problem, fixed);
  const CompletionBound bound(problem, fixed, unit_price);
  const auto run_pass = [&](double threshold, size_t width,
                            const PassCheck& check) {
    const PieceBounds bounds(problem, fixed, bound, threshold);
    return ModulePass(problem, fixed, bounds, width, check).Run();
  };
  const auto improve = [&](std::vector<ChosenUnit> units) {
    return WithoutNeedlessUnits(problem, std::move(units));
  };
  const auto cost = [&](const std::vector<ChosenUnit>& units) {
    return SolutionCost(problem, units);
  };
  const LabelSearch search{.run = run_pass,
                           .improve = improve,
                           .cost = cost,
                           .known_units = known_units};
  return SearchByPasses(
      problem, bound.AtRoot() - unit_price * problem.max_units.value_or(0),
      limits, search);
}

}  // namespace

ModuleSolution SolveByLabels(const ModuleProblem& problem,
                             const SearchLimits& limits,
                             const std::vector<ChosenUnit>& known_units) {
  if (!problem.prefix_structure) {
    throw std::invalid_argument(
        "SolveByLabels: the problem has no prefix structure");
  }
  return SolveWithScaledTimes(
      problem, limits,
      [&](const ModuleProblem& scaled, const SearchLimits& scaled_limits) {
        return Solve(scaled, scaled_limits, known_units);
      });
}

}  // namespace acplan::problems
