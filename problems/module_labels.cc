#include "problems/module_labels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace acplan::problems {

using solver::SearchLimits;
using solver::SearchProgress;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Proof tolerance, relative to the objective.
constexpr double kTolerance = 1e-9;
// Costs nearer to each other than this (relative) are sums of the same numbers
// in another order.
constexpr double kSameCost = 1e-13;

// Fixed-point bytes of the problem.
struct FixedKnot {
  int64_t bytes;
  double ms;
};

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
    fixed.has_units[i] |= !fixed.curve[i].empty();
    for (int c = i + 1; c < i + problem.nodes[i].subtree_size;
         c += problem.nodes[c].subtree_size) {
      fixed.subtree_need[i] =
          std::max(fixed.subtree_need[i], fixed.subtree_need[c]);
      fixed.has_units[i] |= fixed.has_units[c];
    }
    if (!fixed.curve[i].empty()) {
      fixed.largest_need =
          std::max(fixed.largest_need, fixed.subtree_need[i] + fixed.held[i]);
    }
    fixed.largest_need = std::max(fixed.largest_need, fixed.subtree_need[i]);
  }
  return fixed;
}

// Convex, nondecreasing, 0 at and below 0, infinite beyond its end: the least
// cost of discarding n more bytes.
class ConvexCost {
 public:
  // 0 up to `end`.
  static ConvexCost Free(int64_t end) {
    ConvexCost cost;
    cost.Append(end, 0);
    return cost;
  }

  struct Segment {
    int64_t length;
    double slope;
  };

  int64_t end() const { return ends_.empty() ? 0 : ends_.back(); }

  // Minimum over x in [lo, hi] of cost + slope (x - lo) + this(total - x), for
  // a slope >= 0; infinite where total - hi is beyond the end.
  double LeastSum(int64_t lo, int64_t hi, double cost, double slope,
                  int64_t total) const {
    const int64_t first = std::max(lo, total - end());
    if (first > hi) return kInf;
    int64_t x = first;
    if (hi > first) {
      // This falls at least as fast as the piece rises while its slope there
      // exceeds the piece's.
      const auto first_steeper = std::partition_point(
          slopes_.begin(), slopes_.end(), [&](double s) { return s <= slope; });
      const size_t k = static_cast<size_t>(first_steeper - slopes_.begin());
      const int64_t flat_until = k == 0 ? 0 : ends_[k - 1];
      x = std::clamp(total - flat_until, first, hi);
    }
    return cost + slope * static_cast<double>(x - lo) + At(total - x);
  }

  double At(int64_t n) const {
    if (n <= 0) return 0;
    const auto it = std::lower_bound(ends_.begin(), ends_.end(), n);
    if (it == ends_.end()) return kInf;
    const size_t k = static_cast<size_t>(it - ends_.begin());
    return values_[k] - slopes_[k] * static_cast<double>(ends_[k] - n);
  }

  // Restricted to n <= cap.
  void Truncate(int64_t cap) {
    cap = std::max<int64_t>(cap, 0);
    while (!ends_.empty() && ends_.back() > cap) {
      const size_t k = ends_.size() - 1;
      const int64_t begin = k == 0 ? 0 : ends_[k - 1];
      if (begin < cap) {
        values_[k] -= slopes_[k] * static_cast<double>(ends_[k] - cap);
        ends_[k] = cap;
        return;
      }
      ends_.pop_back();
      values_.pop_back();
      slopes_.pop_back();
    }
  }

  // The infimal convolution with a curve given by segments of rising slope.
  ConvexCost Plus(const std::vector<Segment>& curve) const {
    ConvexCost sum;
    sum.Reserve(slopes_.size() + curve.size());
    size_t a = 0;
    size_t b = 0;
    while (a < slopes_.size() || b < curve.size()) {
      if (b == curve.size() ||
          (a < slopes_.size() && slopes_[a] <= curve[b].slope)) {
        sum.Append(ends_[a] - (a == 0 ? 0 : ends_[a - 1]), slopes_[a]);
        ++a;
      } else {
        sum.Append(curve[b].length, curve[b].slope);
        ++b;
      }
    }
    return sum;
  }

  // A lower bound with at most about half of `most` segments, where this has
  // more than `most`: the maximum of evenly spaced lines of it.
  void Coarsen(size_t most) {
    if (slopes_.size() <= most) return;
    const size_t step = (2 * slopes_.size() + most - 1) / most;
    const int64_t last_end = end();
    const auto line_at = [this](size_t k, int64_t n) {
      return values_[k] - slopes_[k] * static_cast<double>(ends_[k] - n);
    };
    ConvexCost coarse;
    coarse.Reserve(slopes_.size() / step + 2);
    size_t line = 0;
    int64_t begin = 0;
    while (true) {
      const size_t next = std::min(line + step, slopes_.size() - 1);
      int64_t until = last_end;
      if (next != line) {
        // Changing to the steeper line late keeps this below both.
        const double apart =
            line_at(line, ends_[line]) - line_at(next, ends_[line]);
        until = ends_[line] + static_cast<int64_t>(std::ceil(
                                  apart / (slopes_[next] - slopes_[line])));
        until = std::clamp(until, begin, last_end);
      }
      coarse.Append(until - begin, slopes_[line]);
      begin = until;
      if (next == line) break;
      line = next;
    }
    *this = std::move(coarse);
  }

  // The convex hull of the minimum of both.
  static ConvexCost HullOfMin(const ConvexCost& a, const ConvexCost& b) {
    std::vector<std::pair<int64_t, double>> hull{{0, 0.0}};
    const auto add = [&](int64_t x, double y) {
      if (x == hull.back().first) {
        if (y >= hull.back().second || x == 0) return;
        hull.pop_back();
      }
      while (hull.size() >= 2) {
        const auto& [x1, y1] = hull[hull.size() - 1];
        const auto& [x0, y0] = hull[hull.size() - 2];
        if ((y1 - y0) * static_cast<double>(x - x1) <
            (y - y1) * static_cast<double>(x1 - x0)) {
          break;
        }
        hull.pop_back();
      }
      hull.emplace_back(x, y);
    };
    size_t i = 0;
    size_t j = 0;
    while (i < a.ends_.size() || j < b.ends_.size()) {
      if (j == b.ends_.size() ||
          (i < a.ends_.size() && a.ends_[i] <= b.ends_[j])) {
        add(a.ends_[i], a.values_[i]);
        ++i;
      } else {
        add(b.ends_[j], b.values_[j]);
        ++j;
      }
    }
    ConvexCost result;
    result.Reserve(hull.size());
    for (size_t k = 1; k < hull.size(); ++k) {
      const int64_t length = hull[k].first - hull[k - 1].first;
      result.Append(length, (hull[k].second - hull[k - 1].second) /
                                static_cast<double>(length));
    }
    return result;
  }

 private:
  void Reserve(size_t n) {
    ends_.reserve(n);
    values_.reserve(n);
    slopes_.reserve(n);
  }

  void Append(int64_t length, double slope) {
    if (length <= 0) return;
    if (!slopes_.empty() && slope <= slopes_.back() * (1 + kSameCost)) {
      ends_.back() += length;
      values_.back() += slopes_.back() * static_cast<double>(length);
      return;
    }
    ends_.push_back(end() + length);
    values_.push_back((values_.empty() ? 0 : values_.back()) +
                      slope * static_cast<double>(length));
    slopes_.push_back(slope);
  }

  std::vector<int64_t> ends_;
  std::vector<double> values_;  // at the ends
  std::vector<double> slopes_;
};

// The lower convex hull of (0, 0) and the curve with `price` added to each
// knot.
std::vector<ConvexCost::Segment> HullSegments(
    const std::vector<FixedKnot>& curve, double price) {
  std::vector<std::pair<int64_t, double>> hull{{0, 0.0}};
  for (const FixedKnot& knot : curve) {
    const double y = knot.ms + price;
    if (knot.bytes <= 0) continue;
    while (hull.size() >= 2) {
      const auto& [x1, y1] = hull[hull.size() - 1];
      const auto& [x0, y0] = hull[hull.size() - 2];
      if ((y1 - y0) * static_cast<double>(knot.bytes - x1) <
          (y - y1) * static_cast<double>(x1 - x0)) {
        break;
      }
      hull.pop_back();
    }
    hull.emplace_back(knot.bytes, y);
  }
  std::vector<ConvexCost::Segment> segments;
  for (size_t k = 1; k < hull.size(); ++k) {
    const int64_t length = hull[k].first - hull[k - 1].first;
    segments.push_back({length, (hull[k].second - hull[k - 1].second) /
                                    static_cast<double>(length)});
  }
  return segments;
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

 private:
  ConvexCost WalkSiblings(int begin, int end, ConvexCost rest) {
    std::vector<int> siblings;
    for (int i = begin; i < end; i += problem_.nodes[i].subtree_size) {
      siblings.push_back(i);
    }
    for (auto it = siblings.rbegin(); it != siblings.rend(); ++it) {
      rest = Walk(*it, std::move(rest));
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

// A point (lo == hi) or segment of E.
struct Piece {
  int64_t lo, hi;  // bytes discarded
  double cost;     // at lo
  double slope;    // ms a fixed-point byte
  int64_t value;   // of the move that made it, see Move
  int32_t label;   // history before the move
  bool shifted;    // kind of the move
  // Whether lo and hi are vertices of the exact E, rather than cuts.
  bool lo_is_vertex, hi_is_vertex;

  double CostAt(int64_t bytes) const {
    return cost + slope * static_cast<double>(bytes - lo);
  }
};
using Frontier = std::vector<Piece>;  // lo ascending, disjoint, cost ascending

constexpr size_t kMovesBeforeForgetting = 1'000'000;

// A unit in a label's history: made from bytes - value (a knot) or from `value`
// (between knots).
struct Move {
  int64_t value;
  int32_t previous;
  int32_t unit;
  bool shifted;
};

bool IsLess(double a, double b) {
  return a < b - kSameCost * std::max(1.0, std::abs(b));
}

enum class Take { kBoth, kFirst };

// The lower envelope of two frontiers, where having more bytes is never worse:
// the pieces (or those of the first alone) that no piece of the other beats.
Frontier LowerEnvelope(const Frontier& a, const Frontier& b, Take take) {
  if (a.empty()) return take == Take::kBoth ? b : Frontier{};
  if (b.empty()) return a;
  Frontier result;
  result.reserve(a.size() + b.size());
  const Piece* source = nullptr;
  const auto emit = [&](const Piece& piece, int64_t from, int64_t to) {
    if (source == &piece && result.back().hi + 1 == from) {
      result.back().hi = to;
      result.back().hi_is_vertex = to == piece.hi && piece.hi_is_vertex;
      return;
    }
    source = &piece;
    Piece cut = piece;
    cut.lo = from;
    cut.hi = to;
    cut.cost = piece.CostAt(from);
    cut.lo_is_vertex = from == piece.lo && piece.lo_is_vertex;
    cut.hi_is_vertex = to == piece.hi && piece.hi_is_vertex;
    result.push_back(cut);
  };

  size_t i = 0;
  size_t j = 0;
  int64_t x = std::min(a.front().lo, b.front().lo);
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && a[i].hi < x) {
      ++i;
      continue;
    }
    if (j < b.size() && b[j].hi < x) {
      ++j;
      continue;
    }
    if (j == b.size() || i == a.size()) {
      const Piece& piece = j == b.size() ? a[i] : b[j];
      if (j == b.size() || take == Take::kBoth) {
        emit(piece, std::max(piece.lo, x), piece.hi);
      }
      x = piece.hi + 1;
      continue;
    }
    const Piece& p = a[i];
    const Piece& q = b[j];
    const bool on_p = p.lo <= x;
    const bool on_q = q.lo <= x;
    const int64_t y = std::min(on_p ? p.hi : p.lo - 1, on_q ? q.hi : q.lo - 1);
    if (on_p || on_q) {
      const auto p_at = [&](int64_t d) { return on_p ? p.CostAt(d) : p.cost; };
      const auto q_at = [&](int64_t d) { return on_q ? q.CostAt(d) : q.cost; };
      // p wins where it is attained and less, or equal while q is attained too.
      const auto p_wins = [&](int64_t d) {
        return on_q ? !IsLess(q_at(d), p_at(d)) : IsLess(p_at(d), q_at(d));
      };
      const bool first = on_p && p_wins(x);
      const bool last = on_p && p_wins(y);
      const auto emit_one = [&](bool p_part, int64_t from, int64_t to) {
        if (from > to) return;
        if (p_part) {
          emit(p, from, to);
        } else if (on_q && take == Take::kBoth) {
          emit(q, from, to);
        }
      };
      if (first == last || !on_p) {
        // With p not attained, q stands where it is less than p's next point.
        if (on_p || IsLess(q_at(y), p_at(y))) {
          emit_one(first, x, y);
        } else if (IsLess(q_at(x), p_at(x))) {
          int64_t lo = x;
          int64_t hi = y;
          while (hi - lo > 1) {
            const int64_t middle = lo + (hi - lo) / 2;
            (IsLess(q_at(middle), p_at(middle)) ? lo : hi) = middle;
          }
          emit_one(false, x, lo);
        }
      } else {
        int64_t lo = x;
        int64_t hi = y;
        while (hi - lo > 1) {
          const int64_t middle = lo + (hi - lo) / 2;
          (p_wins(middle) == first ? lo : hi) = middle;
        }
        emit_one(first, x, lo);
        emit_one(last, hi, y);
      }
    }
    x = y + 1;
  }
  return result;
}

// One pass over the forest.
class Walk {
 public:
  Walk(const ModuleProblem& problem, const FixedProblem& fixed,
       const CompletionBound& bound, double unit_price, double best,
       size_t width, const SearchLimits& limits,
       const std::function<StoppedBy(int64_t, double)>& check)
      : problem_(problem),
        fixed_(fixed),
        bound_(bound),
        unit_price_(unit_price),
        width_(width),
        check_(check) {
    SetBest(best, limits.gap);
    const size_t counts =
        problem.max_units ? static_cast<size_t>(*problem.max_units) + 1 : 1;
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
    frontiers = WalkSiblings(0, static_cast<int>(problem.nodes.size()),
                             std::move(frontiers));
    if (stopped_by_ != StoppedBy::kNothing) return;
    const Piece* last = nullptr;
    for (const Frontier& f : frontiers) {
      if (!f.empty() && (!last || f.front().cost < last->cost)) {
        last = &f.front();
      }
    }
    if (last) Backtrack(*last);
  }

  bool found() const { return found_; }
  const std::vector<std::pair<int, int64_t>>& units() const { return units_; }
  double least_dropped() const { return least_dropped_; }
  bool complete() const {
    return least_dropped_ == kInf && stopped_by_ == StoppedBy::kNothing;
  }
  double threshold() const { return threshold_; }
  int64_t labels() const { return labels_; }
  StoppedBy stopped_by() const { return stopped_by_; }

 private:
  void SetBest(double best, double gap) {
    threshold_ = best == kInf ? kInf
                              : best - std::max(gap, kTolerance) *
                                           std::max(best, kTolerance);
  }

  std::vector<Frontier> WalkSiblings(int begin, int end,
                                     std::vector<Frontier> frontiers) {
    for (int i = begin; i < end && stopped_by_ == StoppedBy::kNothing;
         i += problem_.nodes[i].subtree_size) {
      frontiers = WalkNode(i, std::move(frontiers));
    }
    return frontiers;
  }

  std::vector<Frontier> WalkNode(int i, std::vector<Frontier> frontiers) {
    if (!fixed_.has_units[i]) {
      Cut(frontiers, fixed_.subtree_need[i]);
      return frontiers;
    }
    std::vector<Frontier> as_unit;
    if (!fixed_.curve[i].empty()) as_unit = AddUnit(i, frontiers);
    set_aside_.push_back(&as_unit);
    frontiers = WalkSiblings(i + 1, i + problem_.nodes[i].subtree_size,
                             std::move(frontiers));
    set_aside_.pop_back();
    Cut(frontiers, fixed_.need[i]);
    for (size_t k = 0; k < as_unit.size(); ++k) {
      frontiers[k] = LowerEnvelope(frontiers[k], as_unit[k], Take::kBoth);
    }
    DropDearerCounts(frontiers);
    Prune(i, frontiers);
    Limit(i, frontiers);
    if (moves_.size() > most_moves_) ForgetMoves(frontiers);
    stopped_by_ = check_(labels_, least_dropped_);
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

  static void Cut(std::vector<Frontier>& frontiers, int64_t need) {
    for (Frontier& f : frontiers) {
      const auto first = std::partition_point(
          f.begin(), f.end(), [&](const Piece& p) { return p.hi < need; });
      f.erase(f.begin(), first);
      if (!f.empty() && f.front().lo <= need) {
        Piece& p = f.front();
        p.cost = p.CostAt(need);
        p.lo = need;
        p.lo_is_vertex = true;
      }
    }
  }

  std::vector<Frontier> AddUnit(int i, const std::vector<Frontier>& frontiers) {
    const bool counted = problem_.max_units.has_value();
    std::vector<Frontier> result(frontiers.size());
    for (size_t k = 0; k + (counted ? 1 : 0) < frontiers.size(); ++k) {
      std::vector<Frontier> start{frontiers[k]};
      Cut(start, fixed_.subtree_need[i] + fixed_.held[i]);
      if (start[0].empty()) continue;
      Frontier sum = AddCurve(fixed_.curve[i], start[0]);
      result[k + (counted ? 1 : 0)] = std::move(sum);
    }
    Prune(i, result);
    for (Frontier& f : result) {
      for (Piece& p : f) {
        moves_.push_back({p.value, p.label, i, p.shifted});
        p.label = static_cast<int32_t>(moves_.size()) - 1;
      }
      labels_ += static_cast<int64_t>(f.size());
    }
    return result;
  }

  static Frontier AddCurve(const std::vector<FixedKnot>& curve,
                           const Frontier& frontier) {
    Frontier sum;
    for (size_t k = 0; k < curve.size(); ++k) {
      if (curve[k].bytes > 0) {
        Frontier shifted = frontier;
        for (Piece& p : shifted) {
          p.lo += curve[k].bytes;
          p.hi += curve[k].bytes;
          p.cost += curve[k].ms;
          p.value = curve[k].bytes;
          p.shifted = true;
        }
        sum = LowerEnvelope(sum, shifted, Take::kBoth);
      }
      if (k + 1 < curve.size()) {
        sum = LowerEnvelope(sum, AddSegment(curve[k], curve[k + 1], frontier),
                            Take::kBoth);
      }
    }
    return sum;
  }

  // Each vertex of the frontier followed by the segment from knot to knot.
  static Frontier AddSegment(const FixedKnot& from, const FixedKnot& to,
                             const Frontier& frontier) {
    struct Base {
      int64_t bytes;
      double cost;
      double key;  // cost at 0 bytes of the segment's line through the base
      int32_t label;
    };
    const double slope =
        (to.ms - from.ms) / static_cast<double>(to.bytes - from.bytes);
    std::vector<Base> bases;
    bases.reserve(2 * frontier.size());
    const auto add_base = [&](const Piece& p, int64_t bytes) {
      const double cost = p.CostAt(bytes);
      bases.push_back(
          {bytes, cost, cost - slope * static_cast<double>(bytes), p.label});
    };
    for (const Piece& p : frontier) {
      if (p.lo_is_vertex) add_base(p, p.lo);
      if (p.hi_is_vertex && !(p.lo_is_vertex && p.hi == p.lo)) {
        add_base(p, p.hi);
      }
    }

    Frontier result;
    std::deque<const Base*> window;  // keys ascending: the front is the least
    size_t next = 0;
    int64_t x = 0;
    while (next < bases.size() || !window.empty()) {
      while (!window.empty() && window.front()->bytes + to.bytes < x) {
        window.pop_front();
      }
      if (window.empty()) {
        if (next == bases.size()) break;
        x = std::max(x, bases[next].bytes + from.bytes);
      }
      while (next < bases.size() && bases[next].bytes + from.bytes <= x) {
        while (!window.empty() && window.back()->key >= bases[next].key) {
          window.pop_back();
        }
        window.push_back(&bases[next++]);
      }
      while (!window.empty() && window.front()->bytes + to.bytes < x) {
        window.pop_front();
      }
      if (window.empty()) continue;
      const Base& base = *window.front();
      int64_t y = base.bytes + to.bytes;
      if (next < bases.size()) {
        y = std::min(y, bases[next].bytes + from.bytes - 1);
      }
      const int64_t begin = base.bytes + from.bytes;
      const double cost =
          base.cost + from.ms + slope * static_cast<double>(x - begin);
      if (!result.empty() && result.back().value == base.bytes &&
          result.back().hi + 1 == x) {
        result.back().hi = y;
        result.back().hi_is_vertex = y == base.bytes + to.bytes;
      } else {
        // Where a flat stretch ends, everything before it that cost as much is
        // beaten by what lies further right; drop it.
        while (!result.empty() && !IsLess(result.back().cost, cost)) {
          result.pop_back();
        }
        if (!result.empty() && result.back().hi > result.back().lo &&
            result.back().CostAt(result.back().hi) > cost) {
          Piece& back = result.back();
          const int64_t keep =
              back.lo + static_cast<int64_t>((cost - back.cost) / back.slope);
          back.hi = std::clamp(keep, back.lo, back.hi);
          back.hi_is_vertex = false;
        }
        result.push_back({.lo = x,
                          .hi = y,
                          .cost = cost,
                          .slope = slope,
                          .value = base.bytes,
                          .label = base.label,
                          .shifted = false,
                          .lo_is_vertex = x == begin,
                          .hi_is_vertex = y == base.bytes + to.bytes});
      }
      x = y + 1;
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
      credit = unit_price_ * static_cast<double>(*problem_.max_units -
                                                 static_cast<int>(count));
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
          p.lo_is_vertex = false;
        }
        if (BoundOf(i, k, p) < threshold_) f[kept++] = p;
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
        // The piece that has discarded most is what keeps the walk feasible.
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
        least_dropped_ = std::min(least_dropped_, ranked[r].bound);
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

  void Backtrack(const Piece& last) {
    found_ = true;
    int64_t bytes = last.lo;
    for (int32_t label = last.label; label >= 0;) {
      const Move& move = moves_[label];
      const int64_t amount = move.shifted ? move.value : bytes - move.value;
      units_.emplace_back(move.unit, amount);
      bytes -= amount;
      label = move.previous;
    }
    std::ranges::reverse(units_);
  }

  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  const CompletionBound& bound_;
  double unit_price_;
  size_t width_;
  const std::function<StoppedBy(int64_t, double)>& check_;
  double threshold_ = kInf;
  // Units set aside while their children are walked.
  std::vector<std::vector<Frontier>*> set_aside_;
  std::vector<Move> moves_;
  size_t most_moves_ = kMovesBeforeForgetting;
  std::vector<std::pair<int, int64_t>> units_;
  bool found_ = false;
  double least_dropped_ = kInf;
  int64_t labels_ = 0;
  StoppedBy stopped_by_ = StoppedBy::kNothing;
};

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

}  // namespace

ModuleSolution SolveByLabels(const ModuleProblem& problem,
                             const SearchLimits& limits) {
  if (!problem.prefix_structure) {
    throw std::invalid_argument(
        "SolveByLabels: the problem has no prefix structure");
  }
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
  const std::function<StoppedBy(int64_t, double)> check =
      [&](int64_t pass_labels, double) {
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

  std::vector<std::pair<int, int64_t>> units;
  constexpr std::array<size_t, 5> kWidths = {
      64, 1024, 16384, 262144, std::numeric_limits<size_t>::max()};
  for (const size_t width : kWidths) {
    const Walk walk(problem, fixed, bound, unit_price, best, width, limits,
                    check);
    labels += walk.labels();
    if (walk.stopped_by() != StoppedBy::kNothing) {
      solution.stopped_by = walk.stopped_by();
      break;
    }
    const double pruned_at = walk.threshold();
    if (walk.found()) {
      units = walk.units();
      std::vector<ChosenUnit> chosen;
      for (const auto& [node, bytes] : units) {
        chosen.push_back({node, static_cast<double>(bytes) / fixed.scale});
      }
      solution.units = WithoutNeedlessUnits(problem, std::move(chosen));
      best = SolutionCost(problem, solution.units);
    }
    proven = std::max(proven, std::min({walk.found() ? best : pruned_at,
                                        pruned_at, walk.least_dropped()}));
    if (walk.complete() || close_enough(std::max(limits.gap, kTolerance)))
      break;
  }

  solution.nodes = labels;
  solution.seconds = stopwatch.Seconds();
  if (best == kInf) {
    solution.status = solution.stopped_by == StoppedBy::kNothing
                          ? SearchStatus::kInfeasible
                          : SearchStatus::kNoSolution;
    solution.bound_ms =
        solution.status == SearchStatus::kInfeasible ? kInf : proven;
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
      solution.stopped_by = StoppedBy::kGap;
    }
    solution.bound_ms = std::min(proven, best);
  }
  return solution;
}

}  // namespace acplan::problems
