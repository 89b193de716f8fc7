#include "graph/profile/piecewise_linear_fit.h"

#include <algorithm>
#include <optional>
#include <span>

// Where two segments join, either an optimum has a point, or the two are independent of
// each other: their lines are those of least error through their own points, and happen to
// cross between the last point of one and the first of the other (Hudson, 1966). So a join
// is tried at every point and between every two neighbours. Free joins divide the segments
// into blocks, each of which is a small linear least-squares problem. The fit with these
// joins counts only if the lines on both sides of each free join cross where they should.
//
// The error of separate lines is a lower bound on the error of lines that meet, and takes
// constant time from running moments. Places whose bound is not below the best error are
// skipped. The bound of a beginning grows with its length, so all longer beginnings are
// skipped, too.
//
// Two segments: all places of the one join. Three: all pairs of places, which is the global
// optimum. More: the best place for one more join, with the existing ones fixed; then each
// join in turn moves to its best place until none moves, which is a local optimum. A join
// counts as better only if it gains more than rounding (Improved), so this ends.
//
// The common line of all points is subtracted before the fit, so small bends count in full.

namespace acplan::graph {
namespace {

using Point = std::pair<double, double>;
using Points = std::vector<Point>;

// Sums about the mean, updated point by point (Welford): differences of plain sums would
// lose points that are close together.
struct Moments {
  double n = 0;
  double x = 0, y = 0;  // means
  double xx = 0, xy = 0, yy = 0;

  void Add(const Point& point) {
    n += 1;
    const double dx = point.first - x;
    const double dy = point.second - y;
    x += dx / n;
    y += dy / n;
    xx += dx * (point.first - x);
    xy += dx * (point.second - y);
    yy += dy * (point.second - y);
  }
  double Slope() const { return xx > 0 ? xy / xx : 0; }
  double LineError() const { return std::max(0.0, yy - Slope() * xy); }
};

struct Line {
  double x = 0, y = 0;  // a point of the line
  double slope = 0;

  double At(double place) const { return y + slope * (place - x); }
};

enum class JoinKind { kPoint, kFree, kFixed };

// A join at a point (kPoint), or between it and the next point: anywhere, with segments
// that are independent of each other (kFree), or at a fixed place (kFixed). The points up
// to `point` belong to the segment on its left.
struct Join {
  int point = 0;
  JoinKind kind = JoinKind::kPoint;
  double x = 0;  // for a free join, where the lines of a fit cross
};

struct Fit {
  std::vector<Join> joins;
  std::vector<Line> lines;  // one more than joins
  double error = 0;
};

// Neighbouring segments between two free joins or ends of the points. They meet at the
// joins, which are one less than the segments.
struct JoinedSegments {
  std::span<const Join> joins;
  std::span<const Moments> moments;  // indexed by segment
  int first, last;                   // points
};

// Writes the lines of least error through the segments of a block. The values at the ends
// come from the normal equations, which are tridiagonal, and well-conditioned if every end
// is a point. Returns false if two ends coincide.
bool FitBlock(const Points& points, const JoinedSegments& block,
              std::span<Line> lines) {
  const auto& [joins, moments, first, last] = block;
  const size_t m = moments.size();
  if (m == 1) {
    if (first >= last) return false;
    lines[0] = {moments[0].x, moments[0].y, moments[0].Slope()};
    return true;
  }
  std::vector<double> ends{points[first].first};
  for (const Join& join : joins) ends.push_back(join.x);
  ends.push_back(points[last].first);
  for (size_t s = 0; s < m; ++s) {
    if (ends[s] >= ends[s + 1]) return false;
  }

  std::vector<double> diagonal(m + 1, 0), above(m, 0), value(m + 1, 0);
  for (size_t s = 0; s < m; ++s) {
    const Moments& sums = moments[s];
    const double length = ends[s + 1] - ends[s];
    const double right_weight = (sums.x - ends[s]) / length;
    const double left_weight = (ends[s + 1] - sums.x) / length;
    const double spread = sums.xx / length / length;
    const double tilt = sums.xy / length;
    diagonal[s] += sums.n * left_weight * left_weight + spread;
    diagonal[s + 1] += sums.n * right_weight * right_weight + spread;
    above[s] = sums.n * left_weight * right_weight - spread;
    value[s] += sums.n * left_weight * sums.y - tilt;
    value[s + 1] += sums.n * right_weight * sums.y + tilt;
  }
  for (size_t s = 0; s < m; ++s) {
    const double factor = above[s] / diagonal[s];
    diagonal[s + 1] -= factor * above[s];
    value[s + 1] -= factor * value[s];
  }
  value[m] /= diagonal[m];
  for (size_t s = m; s-- > 0;) {
    value[s] = (value[s] - above[s] * value[s + 1]) / diagonal[s];
  }
  for (size_t s = 0; s < m; ++s) {
    const double slope = (value[s + 1] - value[s]) / (ends[s + 1] - ends[s]);
    lines[s] = {moments[s].x, value[s] + slope * (moments[s].x - ends[s]),
                slope};
  }
  return true;
}

// Returns the x at which two lines cross between a point and the next, or nothing.
std::optional<double> Crossing(const Points& points, int point,
                               const Line& left_line, const Line& right_line) {
  const double start = points[point].first;
  const double stop = points[point + 1].first;
  const double gap_at_start = left_line.At(start) - right_line.At(start);
  const double gap_at_stop = left_line.At(stop) - right_line.At(stop);
  const bool crosses = (gap_at_start <= 0 && gap_at_stop >= 0) ||
                       (gap_at_start >= 0 && gap_at_stop <= 0);
  if (!crosses || gap_at_start == gap_at_stop) return std::nullopt;
  return std::clamp(
      start + (stop - start) * (gap_at_start / (gap_at_start - gap_at_stop)),
      start, stop);
}

// Returns the fit with these joins, whose segments have these moments; nothing if a free
// join is not where it should be, or if the error is not below `max_error`.
std::optional<Fit> FitJoins(const Points& points, std::vector<Join> joins,
                            std::span<const Moments> moments,
                            double max_error) {
  Fit fit;
  fit.lines.resize(moments.size());
  int first = 0;
  size_t block = 0;
  for (size_t s = 0; s < moments.size(); ++s) {
    const bool is_last = s == joins.size();
    if (!is_last && joins[s].kind != JoinKind::kFree) continue;
    const int last =
        is_last ? static_cast<int>(points.size()) - 1 : joins[s].point;
    const JoinedSegments segments = {
        .joins = std::span(joins).subspan(block, s - block),
        .moments = moments.subspan(block, s - block + 1),
        .first = first,
        .last = last};
    if (!FitBlock(points, segments,
                  std::span(fit.lines).subspan(block, s - block + 1))) {
      return std::nullopt;
    }
    first = last + 1;
    block = s + 1;
  }
  for (size_t s = 0; s < moments.size(); ++s) {
    const double shift = fit.lines[s].y - moments[s].y;
    const double turn = fit.lines[s].slope - moments[s].Slope();
    fit.error += moments[s].LineError() + moments[s].n * shift * shift +
                 moments[s].xx * turn * turn;
  }
  if (!(fit.error < max_error)) return std::nullopt;
  for (size_t s = 0; s < joins.size(); ++s) {
    if (joins[s].kind != JoinKind::kFree) continue;
    const auto x =
        Crossing(points, joins[s].point, fit.lines[s], fit.lines[s + 1]);
    if (!x) return std::nullopt;
    joins[s].x = *x;
  }
  fit.joins = std::move(joins);
  return fit;
}

// Returns, indexed by i - first, the moments of the points [first, i] (Beginnings) or of
// the points [i, last] (Ends).
std::vector<Moments> Beginnings(const Points& points, int first, int last) {
  std::vector<Moments> result;
  Moments sums;
  for (int i = first; i <= last; ++i) {
    sums.Add(points[i]);
    result.push_back(sums);
  }
  return result;
}
std::vector<Moments> Ends(const Points& points, int first, int last) {
  std::vector<Moments> result;
  Moments sums;
  for (int i = last; i >= first; --i) {
    sums.Add(points[i]);
    result.push_back(sums);
  }
  std::ranges::reverse(result);
  return result;
}

// Neither rounding nor the gain of a join that creeps counts as an improvement.
constexpr double kLeastImprovement = 1e-10;
double Improved(double error) { return error * (1 - kLeastImprovement); }

// Returns the fit with one more join at its best place, as the `slot`-th; the others stay.
std::optional<Fit> BestJoin(const Points& points,
                            const std::vector<Join>& others, size_t slot,
                            double max_error) {
  std::vector<Join> joins = others;
  joins.insert(joins.begin() + slot, Join());
  const int end = static_cast<int>(points.size()) - 1;
  const auto last_of = [&](size_t s) {
    return s == joins.size() ? end : joins[s].point;
  };
  std::vector<Moments> moments(joins.size() + 1);
  double fixed = 0;
  for (size_t s = 0; s < moments.size(); ++s) {
    if (s == slot || s == slot + 1) continue;
    const int first = s == 0 ? 0 : last_of(s - 1) + 1;
    moments[s] = Beginnings(points, first, last_of(s)).back();
    fixed += moments[s].LineError();
  }
  const int first = slot == 0 ? 0 : joins[slot - 1].point + 1;
  const int last = last_of(slot + 1);
  const std::vector<Moments> left_moments = Beginnings(points, first, last);
  const std::vector<Moments> right_moments = Ends(points, first, last);
  std::optional<Fit> best;
  for (int i = first; i < last; ++i) {
    moments[slot] = left_moments[i - first];
    moments[slot + 1] = right_moments[i - first + 1];
    if (fixed + moments[slot].LineError() + moments[slot + 1].LineError() >=
        max_error) {
      continue;
    }
    for (const JoinKind kind : {JoinKind::kPoint, JoinKind::kFree}) {
      joins[slot] = {i, kind, points[i].first};
      if (auto fit = FitJoins(points, joins, moments, max_error)) {
        max_error = Improved(fit->error);
        best = std::move(fit);
      }
    }
  }
  return best;
}

// Returns the fit with one more join at its best place. The joins that are between points
// may move with it, or stay.
std::optional<Fit> BestMoreJoin(const Points& points, std::vector<Join> others,
                                double max_error) {
  std::optional<Fit> best;
  for (const JoinKind kind : {JoinKind::kFree, JoinKind::kFixed}) {
    for (Join& join : others) {
      if (join.kind != JoinKind::kPoint) join.kind = kind;
    }
    for (size_t slot = 0; slot <= others.size(); ++slot) {
      if (auto fit = BestJoin(points, others, slot, max_error)) {
        max_error = Improved(fit->error);
        best = std::move(fit);
      }
    }
  }
  return best;
}

// Returns the fit with two joins at their best places.
std::optional<Fit> BestTwoJoins(const Points& points, double max_error) {
  const int end = static_cast<int>(points.size()) - 1;
  const std::vector<Moments> left_moments = Beginnings(points, 0, end);
  const std::vector<Moments> right_moments = Ends(points, 0, end);
  std::optional<Fit> best;
  for (int i = 0; i < end - 1; ++i) {
    const double left_error = left_moments[i].LineError();
    if (left_error >= max_error) break;
    Moments middle;
    for (int j = i + 1; j < end; ++j) {
      middle.Add(points[j]);
      const double error = left_error + middle.LineError();
      if (error >= max_error) break;
      const Moments& rest = right_moments[j + 1];
      if (error + rest.LineError() >= max_error) continue;
      const Moments moments[] = {left_moments[i], middle, rest};
      for (const JoinKind first : {JoinKind::kPoint, JoinKind::kFree}) {
        for (const JoinKind second : {JoinKind::kPoint, JoinKind::kFree}) {
          const std::vector<Join> joins{{i, first, points[i].first},
                                        {j, second, points[j].first}};
          if (auto fit = FitJoins(points, joins, moments, max_error)) {
            max_error = Improved(fit->error);
            best = std::move(fit);
          }
        }
      }
    }
  }
  return best;
}

// Moves each join in turn until none moves.
Fit WithMovedJoins(const Points& points, Fit fit) {
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t k = 0; k < fit.joins.size(); ++k) {
      std::vector<Join> others = fit.joins;
      others.erase(others.begin() + k);
      if (auto better_fit = BestMoreJoin(points, others, Improved(fit.error))) {
        fit = *std::move(better_fit);
        moves = true;
      }
    }
  }
  return fit;
}

}  // namespace

double PiecewiseLinear::At(double x) const {
  const auto next =
      std::upper_bound(breakpoints.begin() + 1, breakpoints.end() - 1, x);
  const size_t k = static_cast<size_t>(next - breakpoints.begin()) - 1;
  return slopes[k] * x + intercepts[k];
}

double SquaredError(const PiecewiseLinear& f,
                    const std::vector<std::pair<double, double>>& points) {
  double sum = 0;
  for (const auto& [x, y] : points) {
    const double error = f.At(x) - y;
    sum += error * error;
  }
  return sum;
}

PiecewiseLinear FitPiecewiseLinear(
    const std::vector<std::pair<double, double>>& points, int segments) {
  const int end = static_cast<int>(points.size()) - 1;
  const Moments all = Beginnings(points, 0, end).back();
  const Line trend{all.x, all.y, all.Slope()};
  // The differences from one line, so that small bends count in full.
  Points rest = points;
  for (auto& [x, y] : rest) y -= trend.At(x);

  Fit fit;
  const Moments rest_sums = Beginnings(rest, 0, end).back();
  fit.lines = {{rest_sums.x, rest_sums.y, rest_sums.Slope()}};
  fit.error = rest_sums.LineError();
  for (int k = 2; k <= std::min(segments, end); ++k) {
    if (auto more = BestMoreJoin(rest, fit.joins, Improved(fit.error))) {
      fit = *std::move(more);
    }
    if (k == 3) {
      if (auto best = BestTwoJoins(rest, Improved(fit.error))) {
        fit = *std::move(best);
      }
    } else if (k > 3) {
      fit = WithMovedJoins(rest, std::move(fit));
    }
  }

  PiecewiseLinear f;
  f.breakpoints.push_back(points.front().first);
  for (size_t s = 0; s < fit.lines.size(); ++s) {
    const Line& line = fit.lines[s];
    f.slopes.push_back(trend.slope + line.slope);
    f.intercepts.push_back(trend.At(line.x) + line.y -
                           f.slopes.back() * line.x);
    if (s == fit.joins.size()) break;
    f.breakpoints.push_back(fit.joins[s].x);
  }
  f.breakpoints.push_back(points.back().first);
  return f;
}

}  // namespace acplan::graph
