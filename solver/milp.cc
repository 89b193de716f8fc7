#include "solver/milp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace acplan::solver {
namespace {

std::string PlaceText(std::string_view kind, size_t index,
                      const std::string& name) {
  return name.empty() ? fmt::format("{} {}", kind, index)
                      : fmt::format("{} {} '{}'", kind, index, name);
}

void ValidateBounds(double lower, double upper, std::string_view kind,
                    size_t index, const std::string& name) {
  // This form of the condition is also true for a NaN.
  if (!(lower <= upper) || lower == kInfinity || upper == -kInfinity) {
    throw std::invalid_argument(fmt::format("{}: bounds [{}, {}] are no range",
                                            PlaceText(kind, index, name), lower,
                                            upper));
  }
}

void CheckSize(const Milp& milp, std::span<const double> x) {
  if (x.size() != milp.columns.size()) {
    throw std::invalid_argument(
        fmt::format("{} values for {} columns", x.size(), milp.columns.size()));
  }
}

// Returns how far a value is outside of a range; a NaN is infinitely far.
double Excess(double value, double lower, double upper) {
  if (std::isnan(value)) return kInfinity;
  return std::max({0.0, lower - value, value - upper});
}

}  // namespace

int Milp::AddColumn(Column column) {
  columns.push_back(std::move(column));
  return static_cast<int>(columns.size()) - 1;
}

int Milp::AddRow(Row row) {
  rows.push_back(std::move(row));
  return static_cast<int>(rows.size()) - 1;
}

void ValidateMilp(const Milp& milp) {
  if (!std::isfinite(milp.objective_offset)) {
    throw std::invalid_argument("the objective offset is not finite");
  }
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    const Milp::Column& column = milp.columns[j];
    ValidateBounds(column.lower, column.upper, "column", j, column.name);
    if (!std::isfinite(column.cost)) {
      throw std::invalid_argument(
          fmt::format("{}: cost {} is not finite",
                      PlaceText("column", j, column.name), column.cost));
    }
  }
  std::vector<size_t> last_row(milp.columns.size(), milp.rows.size());
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    const Milp::Row& row = milp.rows[i];
    ValidateBounds(row.lower, row.upper, "row", i, row.name);
    for (const Milp::Term& term : row.terms) {
      if (term.column < 0 ||
          static_cast<size_t>(term.column) >= milp.columns.size()) {
        throw std::invalid_argument(fmt::format(
            "{}: there is no column {} ({} columns)",
            PlaceText("row", i, row.name), term.column, milp.columns.size()));
      }
      const size_t j = static_cast<size_t>(term.column);
      if (!std::isfinite(term.coefficient)) {
        throw std::invalid_argument(
            fmt::format("{}: coefficient {} of {} is not finite",
                        PlaceText("row", i, row.name), term.coefficient,
                        PlaceText("column", j, milp.columns[j].name)));
      }
      if (last_row[j] == i) {
        throw std::invalid_argument(
            fmt::format("{}: {} occurs twice", PlaceText("row", i, row.name),
                        PlaceText("column", j, milp.columns[j].name)));
      }
      last_row[j] = i;
    }
  }
}

double ObjectiveValue(const Milp& milp, std::span<const double> x) {
  CheckSize(milp, x);
  double sum = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    // A column's value may be infinite only if the column costs nothing.
    if (milp.columns[j].cost != 0) sum += milp.columns[j].cost * x[j];
  }
  return sum + milp.objective_offset;
}

double LargestViolation(const Milp& milp, std::span<const double> x) {
  CheckSize(milp, x);
  double largest = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    const Milp::Column& column = milp.columns[j];
    largest = std::max(largest, Excess(x[j], column.lower, column.upper));
    if (column.is_integer) {
      largest = std::max(largest, std::abs(x[j] - std::round(x[j])));
    }
  }
  for (const Milp::Row& row : milp.rows) {
    double sum = 0;
    for (const Milp::Term& term : row.terms) {
      sum += term.coefficient * x[static_cast<size_t>(term.column)];
    }
    largest = std::max(largest, Excess(sum, row.lower, row.upper));
  }
  return largest;
}

bool IsFeasible(const Milp& milp, std::span<const double> x, double tolerance) {
  CheckSize(milp, x);
  for (size_t j = 0; j < x.size(); ++j) {
    const Milp::Column& column = milp.columns[j];
    if (!std::isfinite(x[j])) return false;
    const double size = std::max(1.0, std::abs(x[j]));
    if (Excess(x[j], column.lower, column.upper) > tolerance * size) {
      return false;
    }
    if (column.is_integer && std::abs(x[j] - std::round(x[j])) > tolerance) {
      return false;
    }
  }
  for (const Milp::Row& row : milp.rows) {
    double sum = 0;
    double size = 1;
    for (const Milp::Term& term : row.terms) {
      const double value =
          term.coefficient * x[static_cast<size_t>(term.column)];
      sum += value;
      size = std::max(size, std::abs(value));
    }
    if (Excess(sum, row.lower, row.upper) > tolerance * size) return false;
  }
  return true;
}

}  // namespace acplan::solver
