#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <string_view>
#include <unordered_set>

#include "solver/milp.h"

namespace acplan::solver {
namespace {

// Some readers have buffers of a fixed size.
constexpr size_t kLongestName = 60;
constexpr std::string_view kObjectiveName = "obj";

bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns whether a name is a word that starts a section, or names a row type or a bound.
bool IsReserved(std::string_view name) {
  static constexpr std::array<std::string_view, 31> kReserved = {
      "minimize",    "minimise", "minimum", "min",     "maximize", "maximise",
      "maximum",     "max",      "subject", "such",    "st",       "to",
      "that",        "bounds",   "bound",   "free",    "inf",      "infinity",
      "general",     "generals", "gen",     "integer", "integers", "int",
      "binary",      "binaries", "bin",     "semi",    "sos",      "end",
      kObjectiveName};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return std::find(kReserved.begin(), kReserved.end(), lower) !=
         kReserved.end();
}

// Returns a name that both formats accept: letters, digits and '_', and neither a number
// ("e5" is an exponent to some readers) nor a word of the format.
std::string ValidName(std::string_view name, std::string_view prefix,
                      size_t index) {
  if (name.empty()) return fmt::format("{}{}", prefix, index);
  std::string valid(name.substr(0, kLongestName));
  for (char& c : valid) {
    if (!IsLetter(c) && !IsDigit(c)) c = '_';
  }
  const bool like_a_number =
      !IsLetter(valid[0]) ||
      ((valid[0] == 'e' || valid[0] == 'E') &&
       std::all_of(valid.begin() + 1, valid.end(), IsDigit));
  if (like_a_number || IsReserved(valid)) {
    valid = fmt::format("{}_{}", prefix, valid);
  }
  return valid;
}

// Names that are unique within a program.
class UniqueNames {
 public:
  std::string Take(std::string_view name, std::string_view prefix,
                   size_t index) {
    std::string valid = ValidName(name, prefix, index);
    if (taken_names_.insert(valid).second) return valid;
    for (size_t k = index;; ++k) {
      std::string other = fmt::format("{}_{}", valid, k);
      if (taken_names_.insert(other).second) return other;
    }
  }

 private:
  std::unordered_set<std::string> taken_names_;
};

bool IsFree(const Milp::Row& row) {
  return row.lower == -kInfinity && row.upper == kInfinity;
}

bool IsRange(const Milp::Row& row) {
  return row.lower < row.upper && row.lower != -kInfinity &&
         row.upper != kInfinity;
}

struct Names {
  std::vector<std::string> columns;
  std::string constant;  // the column of the objective's offset
  std::vector<std::string> rows;
  std::vector<std::string>
      lower_rows;  // for the lower side of a range, else empty
};

Names MakeNames(const Milp& milp) {
  Names names;
  UniqueNames columns;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    names.columns.push_back(columns.Take(milp.columns[j].name, "x", j));
  }
  names.constant = columns.Take("constant", "x", 0);
  UniqueNames rows;
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    names.rows.push_back(rows.Take(milp.rows[i].name, "r", i));
  }
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    names.lower_rows.push_back(IsRange(milp.rows[i])
                                   ? rows.Take(names.rows[i] + "_lower", "r", i)
                                   : "");
  }
  return names;
}

// Returns the shortest text that reads back as the same number.
std::string Number(double value) { return fmt::format("{}", value + 0.0); }

// A sum of terms as text, broken over several lines since readers limit a line's length.
class LpSum {
 public:
  void Add(double coefficient, std::string_view column) {
    if (terms_ > 0 && terms_ % 5 == 0) text_ += "\n  ";
    ++terms_;
    fmt::format_to(std::back_inserter(text_), " {} {} {}",
                   std::signbit(coefficient) ? '-' : '+',
                   Number(std::abs(coefficient)), column);
  }
  const std::string& text() const { return text_; }
  bool empty() const { return terms_ == 0; }

 private:
  std::string text_;
  int terms_ = 0;
};

std::string LpObjective(const Milp& milp, const Names& names) {
  std::vector<bool> occurs(milp.columns.size(), false);
  for (const Milp::Row& row : milp.rows) {
    if (IsFree(row)) continue;
    for (const Milp::Term& term : row.terms) {
      occurs[static_cast<size_t>(term.column)] = true;
    }
  }
  LpSum sum;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    const double cost = milp.columns[j].cost;
    // Every column has to occur somewhere in the text.
    if (cost != 0 || !occurs[j]) sum.Add(cost, names.columns[j]);
  }
  // Readers disagree about the meaning and the sign of a constant, so a column stands for
  // it.
  if (milp.objective_offset != 0 || milp.columns.empty()) {
    sum.Add(milp.objective_offset, names.constant);
  }
  if (sum.empty()) sum.Add(0, names.columns[0]);
  return fmt::format(" {}:{}\n", kObjectiveName, sum.text());
}

// Returns a row as text. A range takes two rows, since not all readers accept it in one.
std::string LpRow(const Milp& milp, size_t index, const Names& names) {
  const Milp::Row& row = milp.rows[index];
  const std::string& name = names.rows[index];
  LpSum sum;
  for (const Milp::Term& term : row.terms) {
    sum.Add(term.coefficient, names.columns[static_cast<size_t>(term.column)]);
  }
  if (sum.empty()) {
    sum.Add(0, milp.columns.empty() ? names.constant : names.columns[0]);
  }
  // The format has no free rows.
  if (IsFree(row)) return fmt::format("\\ {} is left out: no bounds\n", name);
  const auto line = [&sum](const std::string& label, std::string_view relation,
                           double side) {
    return fmt::format(" {}:{} {} {}\n", label, sum.text(), relation,
                       Number(side));
  };
  if (row.lower == row.upper) return line(name, "=", row.lower);
  if (row.upper == kInfinity) return line(name, ">=", row.lower);
  if (row.lower == -kInfinity) return line(name, "<=", row.upper);
  return line(name, "<=", row.upper) +
         line(names.lower_rows[index], ">=", row.lower);
}

std::string LpBound(const Milp::Column& column, const std::string& name) {
  if (column.lower == -kInfinity && column.upper == kInfinity) {
    return fmt::format(" {} free\n", name);
  }
  if (column.lower == column.upper) {
    return fmt::format(" {} = {}\n", name, Number(column.lower));
  }
  if (column.upper == kInfinity) {
    return column.lower == 0
               ? ""
               : fmt::format(" {} >= {}\n", name, Number(column.lower));
  }
  return fmt::format(" {} <= {} <= {}\n",
                     column.lower == -kInfinity ? "-inf" : Number(column.lower),
                     name, Number(column.upper));
}

char MpsRowType(const Milp::Row& row) {
  if (IsFree(row)) return 'N';
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
std::string MpsColumns(const Milp& milp, const Names& names) {
  std::vector<std::string> entries(milp.columns.size());
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    for (const Milp::Term& term : milp.rows[i].terms) {
      const size_t j = static_cast<size_t>(term.column);
      entries[j] += fmt::format(" {} {} {}\n", names.columns[j], names.rows[i],
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
      text += fmt::format(" {} {} {}\n", names.columns[j], kObjectiveName,
                          Number(column.cost));
    }
    text += entries[j];
  }
  if (in_integers) text += marker(false);
  return text;
}

// Returns the right-hand sides, and the ranges of rows with two sides.
std::string MpsSides(const Milp& milp, const Names& names) {
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
      text += fmt::format(" RHS {} {}\n", names.rows[i], Number(side));
    }
    if (type == 'L' && row.lower != -kInfinity) {
      ranges += fmt::format(" RNG {} {}\n", names.rows[i],
                            Number(row.upper - row.lower));
    }
  }
  if (!ranges.empty()) text += "RANGES\n" + ranges;
  return text;
}

}  // namespace

std::string ToLp(const Milp& milp) {
  ValidateMilp(milp);
  const Names names = MakeNames(milp);
  std::string text =
      fmt::format("\\ {}\nMinimize\n", ValidName(milp.name, "program", 0));
  text += LpObjective(milp, names);
  text += "Subject To\n";
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    text += LpRow(milp, i, names);
  }
  text += "Bounds\n";
  std::string integers;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    text += LpBound(milp.columns[j], names.columns[j]);
    if (milp.columns[j].is_integer) {
      integers += fmt::format(" {}\n", names.columns[j]);
    }
  }
  if (milp.objective_offset != 0 || milp.columns.empty()) {
    text += fmt::format(" {} = 1\n", names.constant);
  }
  if (!integers.empty()) text += "General\n" + integers;
  text += "End\n";
  return text;
}

std::string ToMps(const Milp& milp) {
  ValidateMilp(milp);
  const Names names = MakeNames(milp);
  std::string text =
      fmt::format("NAME {} FREE\nROWS\n N {}\n",
                  ValidName(milp.name, "program", 0), kObjectiveName);
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    text += fmt::format(" {} {}\n", MpsRowType(milp.rows[i]), names.rows[i]);
  }
  text += MpsColumns(milp, names);
  text += MpsSides(milp, names);
  text += "BOUNDS\n";
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    text += MpsBounds(milp.columns[j], names.columns[j]);
  }
  text += "ENDATA\n";
  return text;
}

}  // namespace acplan::solver
