#include "reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace acplan::solver {
namespace {

using Vector = std::vector<double>;

struct HalfSpace {  // normal * y <= side
  Vector normal;
  double side = 0;
};

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Returns the point where all planes meet.
std::optional<Vector> Meet(std::vector<HalfSpace> planes) {
  const size_t n = planes.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(planes[i].normal[k]) > std::abs(planes[pivot].normal[k])) {
        pivot = i;
      }
    }
    if (std::abs(planes[pivot].normal[k]) < 1e-9) return std::nullopt;
    std::swap(planes[k], planes[pivot]);
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = planes[i].normal[k] / planes[k].normal[k];
      for (size_t j = k; j < n; ++j) {
        planes[i].normal[j] -= factor * planes[k].normal[j];
      }
      planes[i].side -= factor * planes[k].side;
    }
  }
  Vector point(n);
  for (size_t k = 0; k < n; ++k)
    point[k] = planes[k].side / planes[k].normal[k];
  return point;
}

// Returns the least cost * y in a bounded polyhedron.
std::optional<double> LeastAtVertex(const Vector& cost,
                                    const std::vector<HalfSpace>& spaces) {
  std::optional<double> least;
  const auto try_point = [&](const Vector& y) {
    for (const HalfSpace& space : spaces) {
      if (Dot(space.normal, y) > space.side + 1e-7) return;
    }
    const double value = Dot(cost, y);
    if (!least || value < *least) least = value;
  };
  const size_t n = cost.size();
  if (n == 0) {
    try_point({});
    return least;
  }
  std::vector<bool> is_chosen(spaces.size(), false);
  std::fill(is_chosen.begin(),
            is_chosen.begin() + static_cast<std::ptrdiff_t>(n), true);
  do {
    std::vector<HalfSpace> planes;
    for (size_t i = 0; i < spaces.size(); ++i) {
      if (is_chosen[i]) planes.push_back(spaces[i]);
    }
    if (const auto y = Meet(planes)) try_point(*y);
  } while (std::prev_permutation(is_chosen.begin(), is_chosen.end()));
  return least;
}

}  // namespace

Milp RandomMilp(std::mt19937& random, const RandomMilpOptions& options) {
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto number = [&](int low, int high) {
    const double fraction = options.fractional ? 0.01 * draw(0, 99) : 0.0;
    return draw(low, high) + fraction;
  };
  Milp milp;
  milp.objective_offset = draw(0, 2) == 0 ? number(-50, 50) : 0.0;
  Vector inside_point;  // a point that most rows admit by construction
  for (int j = 0; j < options.integers + options.continuous; ++j) {
    const bool integer = j < options.integers;
    const double lower = integer ? draw(-2, 1) : number(-4, 1);
    const double upper = lower + draw(integer ? 0 : 1, integer ? 3 : 6);
    milp.AddColumn({.name = "",
                    .lower = lower,
                    .upper = upper,
                    .cost = number(-9, 9),
                    .is_integer = integer});
    inside_point.push_back(
        integer ? draw(static_cast<int>(lower), static_cast<int>(upper))
                : 0.5 * (lower + upper));
  }
  const int columns = static_cast<int>(milp.columns.size());
  for (int i = 0; i < options.rows; ++i) {
    Milp::Row row;
    double value = 0;
    for (int j = 0; j < columns; ++j) {
      if (draw(0, 3) == 0) continue;
      row.terms.push_back({.column = j, .coefficient = number(-6, 6)});
      value +=
          row.terms.back().coefficient * inside_point[static_cast<size_t>(j)];
    }
    // Some rows are independent of that point.
    if (draw(0, 7) == 0) value = draw(-12, 12);
    const int kind = draw(0, options.equalities ? 3 : 2);
    row.lower = kind == 1 ? -kInfinity : value - (kind == 3 ? 0 : draw(0, 4));
    row.upper = kind == 0 ? kInfinity : value + (kind == 3 ? 0 : draw(0, 4));
    if (kind == 3) row.upper = row.lower;
    milp.AddRow(std::move(row));
  }
  return milp;
}

std::optional<double> BruteForce(const Milp& milp) {
  std::vector<size_t> integers;
  std::vector<size_t> continuous;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    (milp.columns[j].is_integer ? integers : continuous).push_back(j);
  }
  Vector cost;
  for (const size_t j : continuous) cost.push_back(milp.columns[j].cost);
  std::optional<double> least;
  Vector x(milp.columns.size(), 0);
  for (const size_t j : integers) x[j] = milp.columns[j].lower;
  for (;;) {
    std::vector<HalfSpace> spaces;
    for (const Milp::Row& row : milp.rows) {
      Vector dense(milp.columns.size(), 0);
      double fixed = 0;
      for (const Milp::Term& term : row.terms) {
        const size_t j = static_cast<size_t>(term.column);
        dense[j] = term.coefficient;
        fixed += term.coefficient * x[j];
      }
      HalfSpace space;
      for (const size_t j : continuous) space.normal.push_back(dense[j]);
      space.side = row.upper - fixed;
      if (row.upper != kInfinity) spaces.push_back(space);
      for (double& value : space.normal) value = -value;
      space.side = fixed - row.lower;
      if (row.lower != -kInfinity) spaces.push_back(space);
    }
    for (size_t k = 0; k < continuous.size(); ++k) {
      HalfSpace space{.normal = Vector(continuous.size(), 0), .side = 0};
      space.normal[k] = 1;
      space.side = milp.columns[continuous[k]].upper;
      spaces.push_back(space);
      space.normal[k] = -1;
      space.side = -milp.columns[continuous[k]].lower;
      spaces.push_back(space);
    }
    if (const auto value = LeastAtVertex(cost, spaces)) {
      const double objective = *value + ObjectiveValue(milp, x);
      if (!least || objective < *least) least = objective;
    }
    size_t k = 0;
    for (; k < integers.size(); ++k) {
      const Milp::Column& column = milp.columns[integers[k]];
      if (++x[integers[k]] <= column.upper) break;
      x[integers[k]] = column.lower;
    }
    if (k == integers.size()) return least;
  }
}

Milp HardKnapsack(int items, int dimensions, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_int_distribution<int> draw(500, 1000);
  Milp milp;
  for (int j = 0; j < items; ++j) {
    milp.AddColumn({.name = "",
                    .lower = 0,
                    .upper = 1,
                    .cost = -static_cast<double>(draw(random)),
                    .is_integer = true});
  }
  for (int i = 0; i < dimensions; ++i) {
    Milp::Row row;
    double sum = 0;
    for (int j = 0; j < items; ++j) {
      row.terms.push_back(
          {.column = j, .coefficient = static_cast<double>(draw(random))});
      sum += row.terms.back().coefficient;
    }
    row.upper = std::floor(sum / 2);
    milp.AddRow(std::move(row));
  }
  return milp;
}

}  // namespace acplan::solver
