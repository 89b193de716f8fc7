#include "problems/engines/labels/module_labels.h"

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

#include "problems/engines/labels/completion_bound.h"
#include "problems/engines/labels/label_passes.h"
#include "solver/labels/convex_cost.h"
#include "solver/labels/cost_frontier.h"
#include "solver/labels/label_history.h"

namespace acplan::problems {

using solver::AddCurve;
using solver::CostFrontier;
using solver::Cut;
using solver::FrontierPiece;
using solver::LabelHistory;
using solver::LowerEnvelope;
using solver::Take;

using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFinestScale = 0x1p40;

// A unit in a label's history; `value` and `shifted` as in a FrontierPiece.
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
       const PassCheck& check)
      : problem_(problem),
        fixed_(fixed),
        bound_(bound),
        threshold_(threshold),
        width_(width),
        check_(check) {}

  PassResult Run() {
    const size_t counts =
        problem_.max_units ? static_cast<size_t>(*problem_.max_units) + 1 : 1;
    std::vector<CostFrontier> frontiers(counts);
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
    const FrontierPiece* last = nullptr;
    for (const CostFrontier& f : frontiers) {
      if (!f.empty() && (!last || f.front().cost < last->cost)) {
        last = &f.front();
      }
    }
    // Unused units are credited in the bounds, so with max_units a label that
    // is no better than the best plan may get here.
    if (last && last->cost < threshold_) {
      result_.units = Backtrack(*last);
    }
    return std::move(result_);
  }

 private:
  std::vector<CostFrontier> WalkSiblings(int begin, int end,
                                         std::vector<CostFrontier> frontiers) {
    for (int i = begin; i < end && result_.stopped_by == StoppedBy::kNothing;
         i += problem_.nodes[i].subtree_size) {
      frontiers = WalkNode(i, std::move(frontiers));
    }
    return frontiers;
  }

  std::vector<CostFrontier> WalkNode(int i,
                                     std::vector<CostFrontier> frontiers) {
    if (!fixed_.has_units[i]) {
      CutAll(frontiers, fixed_.subtree_need[i]);
      return frontiers;
    }
    std::vector<CostFrontier> as_unit;
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
    if (history_.IsLong()) ForgetMoves(frontiers);
    result_.stopped_by =
        history_.IsFull() ? StoppedBy::kMemory : check_(result_.labels);
    return frontiers;
  }

  // Drops the moves that no label's history needs any more.
  void ForgetMoves(std::vector<CostFrontier>& frontiers) {
    std::vector<std::vector<CostFrontier>*> live = set_aside_;
    live.push_back(&frontiers);
    history_.Forget([&](auto apply) {
      for (std::vector<CostFrontier>* group : live) {
        for (CostFrontier& f : *group) {
          for (FrontierPiece& p : f) {
            if (p.label >= 0) apply(p.label);
          }
        }
      }
    });
  }

  static void CutAll(std::vector<CostFrontier>& frontiers, int64_t need) {
    for (CostFrontier& f : frontiers) Cut(f, need);
  }

  std::vector<CostFrontier> AddUnit(
      int i, const std::vector<CostFrontier>& frontiers) {
    const bool counted = problem_.max_units.has_value();
    std::vector<CostFrontier> result(frontiers.size());
    for (size_t k = 0; k + (counted ? 1 : 0) < frontiers.size(); ++k) {
      CostFrontier start = frontiers[k];
      Cut(start, fixed_.unit_need[i]);
      if (start.empty()) continue;
      result[k + (counted ? 1 : 0)] = AddCurve(fixed_.curve[i], start);
    }
    Prune(i, result);
    for (CostFrontier& f : result) {
      for (FrontierPiece& p : f) {
        p.label = history_.Add({p.value, p.label, i, p.shifted});
      }
      result_.labels += static_cast<int64_t>(f.size());
    }
    return result;
  }

  // With a limit on the units, more of them are worth keeping only where they
  // cost less.
  static void DropDearerCounts(std::vector<CostFrontier>& frontiers) {
    if (frontiers.size() <= 1) return;
    CostFrontier least = frontiers[0];
    for (size_t k = 1; k < frontiers.size(); ++k) {
      frontiers[k] = LowerEnvelope(frontiers[k], least, Take::kFirst);
      least = LowerEnvelope(least, frontiers[k], Take::kBoth);
    }
  }

  double BoundOf(int i, size_t count, const FrontierPiece& p) const {
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

  void Prune(int i, std::vector<CostFrontier>& frontiers) const {
    const int64_t total = fixed_.largest_need;
    const int64_t least = total - bound_.After(i).end();
    for (size_t k = 0; k < frontiers.size(); ++k) {
      CostFrontier& f = frontiers[k];
      size_t kept = 0;
      for (size_t j = 0; j < f.size(); ++j) {
        FrontierPiece p = f[j];
        if (p.hi < least) continue;
        if (p.lo < least) {
          p.cost = p.CostAt(least);
          p.lo = least;
          // Only cut off by a bound: no record binds here, so no unit between
          // knots need start from here.
          p.lo_is_vertex = false;
        }
        if (BoundOf(i, k, p) < threshold_) f[kept++] = p;
        // Beyond the largest need, the first piece is the cheapest.
        if (p.lo >= total) break;
      }
      f.resize(kept);
    }
  }

  void Limit(int i, std::vector<CostFrontier>& frontiers) {
    size_t total = 0;
    for (const CostFrontier& f : frontiers) total += f.size();
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
  const CompletionBound& bound_;
  double threshold_;
  size_t width_;
  const PassCheck& check_;
  // Units set aside while their children are walked.
  std::vector<std::vector<CostFrontier>*> set_aside_;
  LabelHistory<Move> history_;
  PassResult result_;
};

ModuleSolution Solve(const ModuleProblem& problem, const SearchLimits& limits,
                     const std::vector<ChosenUnit>& known) {
  const FixedProblem fixed = ToFixedPoint(problem, kFinestScale);
  const double unit_price = BestUnitPrice(problem, fixed);
  const CompletionBound bound(problem, fixed, unit_price);
  const auto run_pass = [&](double threshold, size_t width,
                            const PassCheck& check) {
    return Pass(problem, fixed, bound, threshold, width, check).Run();
  };
  const auto improve = [&](std::vector<ChosenUnit> units) {
    return WithoutNeedlessUnits(problem, std::move(units));
  };
  const auto cost = [&](const std::vector<ChosenUnit>& units) {
    return SolutionCost(problem, units);
  };
  const LabelSearch search{
      .run = run_pass, .improve = improve, .cost = cost, .known = known};
  return SearchByPasses(
      problem, bound.AtRoot() - unit_price * problem.max_units.value_or(0),
      limits, search);
}

}  // namespace

ModuleSolution SolveByLabels(const ModuleProblem& problem,
                             const SearchLimits& limits,
                             const std::vector<ChosenUnit>& known) {
  if (!problem.prefix_structure) {
    throw std::invalid_argument(
        "SolveByLabels: the problem has no prefix structure");
  }
  return SolveWithScaledTimes(
      problem, limits,
      [&](const ModuleProblem& scaled, const SearchLimits& scaled_limits) {
        return Solve(scaled, scaled_limits, known);
      });
}

}  // namespace acplan::problems
