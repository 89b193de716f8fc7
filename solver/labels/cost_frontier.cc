#include "solver/labels/cost_frontier.h"

#include <algorithm>
#include <cmath>
#include <deque>

namespace acplan::solver {

namespace {

bool IsLess(double a, double b) {
  return a < b - kSameCost * std::max(1.0, std::abs(b));
}

// Each vertex of the frontier followed by the segment from knot to knot.
CostFrontier AddSegment(const FixedKnot& from, const FixedKnot& to,
                        const CostFrontier& frontier) {
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
  const auto add_base = [&](const FrontierPiece& p, int64_t bytes) {
    const double cost = p.CostAt(bytes);
    bases.push_back(
        {bytes, cost, cost - slope * static_cast<double>(bytes), p.label});
  };
  for (const FrontierPiece& p : frontier) {
    if (p.lo_is_vertex) add_base(p, p.lo);
    if (p.hi_is_vertex && !(p.lo_is_vertex && p.hi == p.lo)) {
      add_base(p, p.hi);
    }
  }

  CostFrontier result;
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
        FrontierPiece& back = result.back();
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

}  // namespace

CostFrontier LowerEnvelope(const CostFrontier& a, const CostFrontier& b,
                           Take take) {
  if (a.empty()) return take == Take::kBoth ? b : CostFrontier{};
  if (b.empty()) return a;
  CostFrontier result;
  result.reserve(a.size() + b.size());
  const FrontierPiece* source = nullptr;
  const auto emit = [&](const FrontierPiece& piece, int64_t from, int64_t to) {
    if (source == &piece && result.back().hi + 1 == from) {
      result.back().hi = to;
      result.back().hi_is_vertex = to == piece.hi && piece.hi_is_vertex;
      return;
    }
    source = &piece;
    FrontierPiece cut = piece;
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
      const FrontierPiece& piece = j == b.size() ? a[i] : b[j];
      if (j == b.size() || take == Take::kBoth) {
        emit(piece, std::max(piece.lo, x), piece.hi);
      }
      x = piece.hi + 1;
      continue;
    }
    const FrontierPiece& p = a[i];
    const FrontierPiece& q = b[j];
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

void Cut(CostFrontier& frontier, int64_t need) {
  const auto first =
      std::partition_point(frontier.begin(), frontier.end(),
                           [&](const FrontierPiece& p) { return p.hi < need; });
  frontier.erase(frontier.begin(), first);
  if (!frontier.empty() && frontier.front().lo <= need) {
    FrontierPiece& p = frontier.front();
    p.cost = p.CostAt(need);
    p.lo = need;
    // The record binds here: the unit before is between knots just to meet it,
    // and to meet a later record another one may be, starting from here. Only a
    // record that binds between them makes two such units worth while.
    p.lo_is_vertex = true;
  }
}

CostFrontier AddCurve(const std::vector<FixedKnot>& curve,
                      const CostFrontier& frontier) {
  CostFrontier sum;
  for (size_t k = 0; k < curve.size(); ++k) {
    if (curve[k].bytes > 0) {
      CostFrontier shifted = frontier;
      for (FrontierPiece& p : shifted) {
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

}  // namespace acplan::solver
