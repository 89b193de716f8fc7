#include "solver/labels/cost_frontier.h"

#include <algorithm>
#include <cmath>
#include <deque>

// Both operations sweep over the bytes from left to right, in whole bytes, and emit what is
// best on each stretch.
//
// The envelope (LowerEnvelope). Between two ends of pieces each frontier is either
// straight, or not attained and represented by its next point to the right. The difference
// of two lines changes its sign at most once, so bisection finds the last byte up to which
// the frontier that is better at the left end stays better.
//
// A segment added (SegmentSum). Every vertex begins a copy of the segment. All copies have
// one slope, so the best copy that covers a point is the one whose line is lowest: a
// minimum over a sliding window of vertices, kept as a queue with ascending keys. A vertex
// enters the queue where its copy begins, and drops the vertices whose keys are not
// smaller: they end earlier and are beaten everywhere from then on.

namespace acplan::solver {

namespace {

bool IsLess(double a, double b) {
  return a < b - kSameCost * std::max(1.0, std::abs(b));
}

// A vertex of a frontier, from which a segment continues.
struct Base {
  int64_t bytes;
  double cost;
  double key;  // the cost at 0 bytes of the segment's line through the base
  int32_t label;
};

std::vector<Base> Bases(const CostFrontier& frontier, double slope) {
  std::vector<Base> bases;
  bases.reserve(2 * frontier.size());
  const auto add = [&](const FrontierPiece& p, int64_t bytes) {
    const double cost = p.CostAt(bytes);
    bases.push_back(
        {bytes, cost, cost - slope * static_cast<double>(bytes), p.label});
  };
  for (const FrontierPiece& p : frontier) {
    if (p.lo_is_vertex) add(p, p.lo);
    if (p.hi_is_vertex && !(p.lo_is_vertex && p.hi == p.lo)) add(p, p.hi);
  }
  return bases;
}

// The segment between two knots, appended to every vertex of a frontier.
class SegmentSum {
 public:
  SegmentSum(const FixedKnot& first, const FixedKnot& last)
      : first_(first),
        last_(last),
        slope_((last.ms - first.ms) /
               static_cast<double>(last.bytes - first.bytes)) {}

  CostFrontier AppendedTo(const CostFrontier& frontier) && {
    const std::vector<Base> bases = Bases(frontier, slope_);
    std::deque<const Base*> window;  // keys ascending: the front has the least
    size_t next = 0;
    int64_t x = 0;
    const auto drop_ended = [&] {
      while (!window.empty() && window.front()->bytes + last_.bytes < x) {
        window.pop_front();
      }
    };
    while (next < bases.size() || !window.empty()) {
      drop_ended();
      if (window.empty()) {
        if (next == bases.size()) break;
        x = std::max(x, bases[next].bytes + first_.bytes);
      }
      while (next < bases.size() && bases[next].bytes + first_.bytes <= x) {
        while (!window.empty() && window.back()->key >= bases[next].key) {
          window.pop_back();
        }
        window.push_back(&bases[next++]);
      }
      drop_ended();
      if (window.empty()) continue;
      int64_t y = window.front()->bytes + last_.bytes;
      if (next < bases.size()) {
        y = std::min(y, bases[next].bytes + first_.bytes - 1);
      }
      Append(*window.front(), x, y);
      x = y + 1;
    }
    return std::move(result_);
  }

 private:
  // Appends the part [x, y] of the segment that begins at a base.
  void Append(const Base& base, int64_t x, int64_t y) {
    const bool is_end = y == base.bytes + last_.bytes;
    if (!result_.empty() && result_.back().value == base.bytes &&
        result_.back().hi + 1 == x) {
      result_.back().hi = y;
      result_.back().hi_is_vertex = is_end;
      return;
    }
    const int64_t begin = base.bytes + first_.bytes;
    const double cost =
        base.cost + first_.ms + slope_ * static_cast<double>(x - begin);
    DropBeaten(cost);
    result_.push_back({.lo = x,
                       .hi = y,
                       .cost = cost,
                       .slope = slope_,
                       .value = base.bytes,
                       .label = base.label,
                       .shifted = false,
                       .lo_is_vertex = x == begin,
                       .hi_is_vertex = is_end});
  }

  // Drops the end of the result that costs at least `cost`: points further right cost no
  // more and beat it, as where a flat stretch ends.
  void DropBeaten(double cost) {
    while (!result_.empty() && !IsLess(result_.back().cost, cost)) {
      result_.pop_back();
    }
    if (!result_.empty() && result_.back().hi > result_.back().lo &&
        result_.back().CostAt(result_.back().hi) > cost) {
      FrontierPiece& back = result_.back();
      const int64_t keep =
          back.lo + static_cast<int64_t>((cost - back.cost) / back.slope);
      back.hi = std::clamp(keep, back.lo, back.hi);
      back.hi_is_vertex = false;
    }
  }

  const FixedKnot& first_;
  const FixedKnot& last_;
  double slope_;
  CostFrontier result_;
};

// Returns the last value in [lo, hi] up to which `holds` has the value that it has at lo.
// It changes once, before hi.
template <typename Predicate>
int64_t LastWhile(int64_t lo, int64_t hi, Predicate holds) {
  while (hi - lo > 1) {
    const int64_t middle = lo + (hi - lo) / 2;
    (holds(middle) ? lo : hi) = middle;
  }
  return lo;
}

class EnvelopeBuilder {
 public:
  EnvelopeBuilder(const CostFrontier& a, const CostFrontier& b, Take take)
      : a_(a), b_(b), take_(take) {
    result_.reserve(a.size() + b.size());
  }

  CostFrontier Build() && {
    size_t i = 0;
    size_t j = 0;
    int64_t x = std::min(a_.front().lo, b_.front().lo);
    while (i < a_.size() || j < b_.size()) {
      if (i < a_.size() && a_[i].hi < x) {
        ++i;
        continue;
      }
      if (j < b_.size() && b_[j].hi < x) {
        ++j;
        continue;
      }
      if (j == b_.size() || i == a_.size()) {
        const FrontierPiece& piece = j == b_.size() ? a_[i] : b_[j];
        if (j == b_.size() || take_ == Take::kBoth) {
          Emit(piece, std::max(piece.lo, x), piece.hi);
        }
        x = piece.hi + 1;
        continue;
      }
      const FrontierPiece& p = a_[i];
      const FrontierPiece& q = b_[j];
      const int64_t y =
          std::min(p.lo <= x ? p.hi : p.lo - 1, q.lo <= x ? q.hi : q.lo - 1);
      if (p.lo <= x || q.lo <= x) EmitBetter(p, q, x, y);
      x = y + 1;
    }
    return std::move(result_);
  }

 private:
  void Emit(const FrontierPiece& piece, int64_t first, int64_t last) {
    if (source_ == &piece && result_.back().hi + 1 == first) {
      result_.back().hi = last;
      result_.back().hi_is_vertex = last == piece.hi && piece.hi_is_vertex;
      return;
    }
    source_ = &piece;
    FrontierPiece cut = piece;
    cut.lo = first;
    cut.hi = last;
    cut.cost = piece.CostAt(first);
    cut.lo_is_vertex = first == piece.lo && piece.lo_is_vertex;
    cut.hi_is_vertex = last == piece.hi && piece.hi_is_vertex;
    result_.push_back(cut);
  }

  // Emits the better piece on each part of [x, y], on which each piece is attained
  // everywhere or nowhere, and at least one is.
  void EmitBetter(const FrontierPiece& p, const FrontierPiece& q, int64_t x,
                  int64_t y) {
    const bool on_p = p.lo <= x;
    const bool on_q = q.lo <= x;
    const auto p_at = [&](int64_t d) { return on_p ? p.CostAt(d) : p.cost; };
    const auto q_at = [&](int64_t d) { return on_q ? q.CostAt(d) : q.cost; };
    const auto emit_q = [&](int64_t first, int64_t last) {
      if (take_ == Take::kBoth) Emit(q, first, last);
    };
    if (!on_p) {
      // q stays where it costs less than p's next point.
      const auto q_wins = [&](int64_t d) { return IsLess(q_at(d), p_at(d)); };
      if (q_wins(y)) {
        emit_q(x, y);
      } else if (q_wins(x)) {
        emit_q(x, LastWhile(x, y, q_wins));
      }
      return;
    }
    // p wins where it costs less, or as much while q is attained, too.
    const auto p_wins = [&](int64_t d) {
      return on_q ? !IsLess(q_at(d), p_at(d)) : IsLess(p_at(d), q_at(d));
    };
    const auto emit = [&](bool is_p, int64_t first, int64_t last) {
      if (is_p) {
        Emit(p, first, last);
      } else if (on_q) {
        emit_q(first, last);
      }
    };
    const bool first = p_wins(x);
    const bool last = p_wins(y);
    if (first == last) {
      emit(first, x, y);
      return;
    }
    const int64_t end =
        LastWhile(x, y, [&](int64_t d) { return p_wins(d) == first; });
    emit(first, x, end);
    emit(last, end + 1, y);
  }

  const CostFrontier& a_;
  const CostFrontier& b_;
  Take take_;
  CostFrontier result_;
  const FrontierPiece* source_ =
      nullptr;  // the piece that the result's last piece was cut from
};

}  // namespace

CostFrontier LowerEnvelope(const CostFrontier& a, const CostFrontier& b,
                           Take take) {
  if (a.empty()) return take == Take::kBoth ? b : CostFrontier{};
  if (b.empty()) return a;
  return EnvelopeBuilder(a, b, take).Build();
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
    // The record binds here: the unit before is between two knots just to meet it, and to
    // meet a later record another unit may be between knots, too, starting from here. Two
    // such units are worth while only if a record binds between them.
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
      sum = LowerEnvelope(
          sum, SegmentSum(curve[k], curve[k + 1]).AppendedTo(frontier),
          Take::kBoth);
    }
  }
  return sum;
}

}  // namespace acplan::solver
