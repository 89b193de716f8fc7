#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// A table as CSV files hold it (RFC 4180): a line of columns, then rows of as
// many cells. All cells are text.
struct CsvTable {
  std::string file = {};  // for complaints
  std::vector<std::string> columns = {};
  std::vector<std::vector<std::string>> rows = {};
  std::vector<int64_t> lines = {};  // where each row begins, from 1
  std::map<std::string, size_t, std::less<>> places = {};  // of the columns
};

// Parses CSV: cells may stand in double quotes, a quote inside of them twice;
// lines end in \n or \r\n; empty lines are skipped. Throws InputError with file
// and line where a quote is not closed or text follows it, a row has another
// number of cells than there are columns, or a column is unnamed or comes twice.
CsvTable ParseCsv(std::string_view text, std::string_view file);

// A row of a table, which must outlive it. Its values complain with file, line
// and column ("runs.csv: line 7: tp: expected a whole number of at least 1, found
// \"x\"").
class CsvRow {
 public:
  CsvRow(const CsvTable& table, size_t row) : table_(&table), row_(row) {}

  // The text of the cell; empty where the table has no such column.
  const std::string& Text(std::string_view column) const;
  bool Has(std::string_view column) const { return !Text(column).empty(); }
  // A whole number from `least` to 2^53 (4096 and 4096.0 alike).
  int64_t Whole(std::string_view column, int64_t least) const;
  // As above; `fallback` where the cell is empty.
  int64_t WholeOr(std::string_view column, int64_t least,
                  int64_t fallback) const;
  // A finite number above 0.
  double Positive(std::string_view column) const;
  double PositiveOr(std::string_view column, double fallback) const;

  // Throws InputError that names file, line and column.
  [[noreturn]] void Fail(std::string_view column,
                         std::string_view expected) const;

 private:
  const CsvTable* table_;
  size_t row_;
};

// A cell as CSV writes it: in quotes where it needs them.
std::string CsvCell(std::string_view text);

}  // namespace acplan::graph
