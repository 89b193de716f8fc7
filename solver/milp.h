#pragma once

#include <span>
#include <string>
#include <vector>

#include "solver/infinity.h"

namespace acplan::solver {

// A mixed-integer linear program as a plain value: minimise sum cost * x over
// columns, subject to lower <= sum coefficient * x <= upper for every row.
struct Milp {
  struct Column {
    std::string name = {};
    double lower = 0;
    double upper = kInfinity;
    double cost = 0;
    bool is_integer = false;
  };
  struct Term {
    int column = 0;
    double coefficient = 0;
  };
  struct Row {
    std::string name = {};
    double lower = -kInfinity;
    double upper = kInfinity;
    std::vector<Term> terms = {};  // each column at most once
  };

  std::string name;
  std::vector<Column> columns;
  std::vector<Row> rows;
  double objective_offset = 0;

  // Adds a column or row; returns its index.
  int AddColumn(Column column);
  int AddRow(Row row);
};

// Throws std::invalid_argument that names the column or row if bounds are no range (NaN,
// lower above upper, lower +infinity or upper -infinity), if a coefficient or cost is not
// finite, or if a column index is out of range or repeated in a row.
void ValidateMilp(const Milp& milp);

// Returns the objective at x (one value for each column), offset included.
double ObjectiveValue(const Milp& milp, std::span<const double> x);

// Returns the largest violation at x of a bound, a row or integrality; 0 if x is feasible.
double LargestViolation(const Milp& milp, std::span<const double> x);

// Returns whether x is feasible within `tolerance`, which is relative to the largest number
// in the bound or row (and to 1 if all are smaller).
bool IsFeasible(const Milp& milp, std::span<const double> x,
                double tolerance = 1e-6);

// Returns the program in free MPS format, for another solver. Its columns are called x0, x1,
// ..., and its rows r0, r1, ... Throws std::invalid_argument as ValidateMilp does.
std::string ToMps(const Milp& milp);

}  // namespace acplan::solver
