#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// The content of a CSV file (RFC 4180): a line of columns, then rows with as many cells.
// All cells are text.
struct CsvTable {
  std::string file = {};  // the name of the file in errors
  std::vector<std::string> columns = {};
  std::vector<std::vector<std::string>> rows = {};
  std::vector<int64_t> lines = {};  // the line at which each row begins, from 1
  // The index of each column.
  std::map<std::string, size_t, std::less<>> places = {};
};

// Parses CSV: cells may be in double quotes, with a quote inside doubled; lines end in \n
// or \r\n; empty lines are skipped. Throws InputError with file and line if a quote is not
// closed or text follows it, if a row has another number of cells than there are columns,
// or if a column has no name or appears twice.
CsvTable ParseCsv(std::string_view text, std::string_view file);

// A row of a table, which must outlive it. Its errors name file, line and column
// ("runs.csv: line 7: tp: expected a whole number of at least 1, found \"x\"").
class CsvRow {
 public:
  CsvRow(const CsvTable& table, size_t row) : table_(&table), row_(row) {}

  // Returns the text of the cell; empty if the table has no such column.
  const std::string& Text(std::string_view column) const;
  bool Has(std::string_view column) const { return !Text(column).empty(); }
  // Returns a text that is not empty.
  const std::string& Stated(std::string_view column) const;
  // Returns a whole number from `least` to 2^53 (4096 and 4096.0 alike).
  int64_t Whole(std::string_view column, int64_t least) const;
  // Returns the same, or `fallback` if the cell is empty.
  int64_t WholeOr(std::string_view column, int64_t least,
                  int64_t fallback) const;
  // Returns a finite number above 0.
  double Positive(std::string_view column) const;
  double PositiveOr(std::string_view column, double fallback) const;

  // Throws InputError that names file, line and column.
  [[noreturn]] void Fail(std::string_view column,
                         std::string_view expected) const;

 private:
  const CsvTable* table_;
  size_t row_;
};

// Returns a cell as CSV writes it: in quotes if it needs them.
std::string CsvCell(std::string_view text);

}  // namespace acplan::graph
