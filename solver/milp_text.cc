#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "solver/milp.h"

namespace acplan::solver {
namespace {

constexpr std::string_view kObjectiveName = "obj";

// Columns and rows are named by their places: names of the program need not be valid.
std::string ColumnName(size_t column) { return fmt::format("x{}", column); }
std::string RowName(size_t row) { return fmt::format("r{}", row); }

// Returns the shortest text that reads back as the same number.
std::string Number(double value) { return fmt::format("{}", value + 0.0); }

char MpsRowType(const Milp::Row& row) {
  if (row.lower == -kInfinity && row.upper == kInfinity) return 'N';
  if (row.lower == row.upper) return 'E';
  return row.upper == kInfinity ? 'G' : 'L';
}

std::string MpsBounds(const Milp::Column& column, const std::string& name) {
  const auto line = [&name](std::string_view type, double value) {
    return fmt::format(" {} BND {} {}\n", type, name, Number(value));
  };
  const auto bare = [&name](std::string_view type) {
    return fmt::format(" {} BND {}\n", type, name);
  };
  if (column.lower == column.upper) return line("FX", column.lower);
  const bool no_lower = column.lower == -kInfinity;
  const bool no_upper = column.upper == kInfinity;
  if (no_lower && no_upper) return bare("FR");
  std::string text;
  if (no_lower) {
    text += bare("MI");
  } else if (column.lower != 0 || column.upper < 0) {
    text += line("LO", column.lower);
  }
  if (!no_upper) {
    text += line("UP", column.upper);
  } else if (column.is_integer) {
    // Some readers treat an integer column without a bound as binary.
    text += bare("PL");
  }
  return text;
}

// Returns the matrix, column by column.
std::string MpsColumns(const Milp& milp) {
  std::vector<std::string> entries(milp.columns.size());
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    for (const Milp::Term& term : milp.rows[i].terms) {
      const size_t j = static_cast<size_t>(term.column);
      entries[j] += fmt::format(" {} {} {}\n", ColumnName(j), RowName(i),
                                Number(term.coefficient));
    }
  }
  std::string text = "COLUMNS\n";
  bool in_integers = false;
  int markers = 0;
  const auto marker = [&markers](bool begin) {
    return fmt::format(" M{} 'MARKER' '{}'\n", markers++,
                       begin ? "INTORG" : "INTEND");
  };
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    const Milp::Column& column = milp.columns[j];
    if (column.is_integer != in_integers) text += marker(column.is_integer);
    in_integers = column.is_integer;
    if (column.cost != 0 || entries[j].empty()) {
      text += fmt::format(" {} {} {}\n", ColumnName(j), kObjectiveName,
                          Number(column.cost));
    }
    text += entries[j];
  }
  if (in_integers) text += marker(false);
  return text;
}

// Returns the right-hand sides, and the ranges of rows with two sides.
std::string MpsSides(const Milp& milp) {
  std::string text = "RHS\n";
  if (milp.objective_offset != 0) {
    text += fmt::format(" RHS {} {}\n", kObjectiveName,
                        Number(-milp.objective_offset));
  }
  std::string ranges;
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    const Milp::Row& row = milp.rows[i];
    const char type = MpsRowType(row);
    const double side = type == 'L' ? row.upper : row.lower;
    if (type != 'N' && side != 0) {
      text += fmt::format(" RHS {} {}\n", RowName(i), Number(side));
    }
    if (type == 'L' && row.lower != -kInfinity) {
      ranges += fmt::format(" RNG {} {}\n", RowName(i),
                            Number(row.upper - row.lower));
    }
  }
  if (!ranges.empty()) text += "RANGES\n" + ranges;
  return text;
}

}  // namespace

std::string ToMps(const Milp& milp) {
  ValidateMilp(milp);
  std::string text =
      fmt::format("NAME program FREE\nROWS\n N {}\n", kObjectiveName);
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    text += fmt::format(" {} {}\n", MpsRowType(milp.rows[i]), RowName(i));
  }
  text += MpsColumns(milp);
  text += MpsSides(milp);
  text += "BOUNDS\n";
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    text += MpsBounds(milp.columns[j], ColumnName(j));
  }
  text += "ENDATA\n";
  return text;
}

}  // namespace acplan::solver
