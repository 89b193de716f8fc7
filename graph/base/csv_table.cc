#include "graph/base/csv_table.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

constexpr double kMostWhole = 9007199254740992.0;

class CsvParser {
 public:
  CsvParser(std::string_view text, std::string_view file)
      : text_(text), file_(file) {}

  bool AtEnd() const { return at_ == text_.size(); }
  int64_t line() const { return line_; }

  // The cells of the next line.
  std::vector<std::string> Line() {
    std::vector<std::string> cells;
    while (true) {
      cells.push_back(Cell());
      if (AtEnd()) return cells;
      const char end = text_[at_++];
      if (end == ',') continue;
      if (end == '\r' && !AtEnd() && text_[at_] == '\n') ++at_;
      ++line_;
      return cells;
    }
  }

  [[noreturn]] void Complain(int64_t line, std::string_view what) const {
    throw InputError(fmt::format("{}: line {}: {}", file_, line, what));
  }

 private:
  static bool IsEnd(char c) { return c == ',' || c == '\n' || c == '\r'; }

  std::string Cell() {
    if (!AtEnd() && text_[at_] == '"') return QuotedCell();
    const size_t begin = at_;
    while (!AtEnd() && !IsEnd(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string QuotedCell() {
    const int64_t begin = line_;
    std::string cell;
    for (++at_; !AtEnd(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        cell += c;
        continue;
      }
      ++at_;
      if (!AtEnd() && text_[at_] == '"') {
        cell += '"';
        continue;
      }
      if (!AtEnd() && !IsEnd(text_[at_])) {
        Complain(line_,
                 "expected a comma or the end of the line after a "
                 "quoted cell");
      }
      return cell;
    }
    Complain(begin, "expected a quote that closes the cell, found the end");
  }

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

std::optional<double> NumberIn(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

CsvTable ParseCsv(std::string_view text, std::string_view file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  CsvParser parser(text, file);
  CsvTable table{.file = std::string(file)};
  if (parser.AtEnd()) parser.Complain(1, "expected a line of columns");
  table.columns = parser.Line();
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].empty()) {
      parser.Complain(1, fmt::format("column {} has no name", i + 1));
    }
    if (!table.places.emplace(table.columns[i], i).second) {
      parser.Complain(1, fmt::format("the column {} comes twice",
                                     Quoted(table.columns[i])));
    }
  }
  while (!parser.AtEnd()) {
    const int64_t line = parser.line();
    std::vector<std::string> cells = parser.Line();
    if (cells.size() == 1 && cells[0].empty()) continue;
    if (cells.size() != table.columns.size()) {
      parser.Complain(line, fmt::format("expected {} cells, found {}",
                                        table.columns.size(), cells.size()));
    }
    table.rows.push_back(std::move(cells));
    table.lines.push_back(line);
  }
  return table;
}

const std::string& CsvRow::Text(std::string_view column) const {
  static const std::string kNone;
  const auto place = table_->places.find(column);
  return place == table_->places.end() ? kNone
                                       : table_->rows[row_][place->second];
}

const std::string& CsvRow::Stated(std::string_view column) const {
  if (!Has(column)) Fail(column, "a text");
  return Text(column);
}

int64_t CsvRow::Whole(std::string_view column, int64_t least) const {
  const std::optional<double> number = NumberIn(Text(column));
  if (!number || *number != std::floor(*number) || *number > kMostWhole ||
      *number < static_cast<double>(least)) {
    Fail(column, fmt::format("a whole number of at least {}", least));
  }
  return static_cast<int64_t>(*number);
}

int64_t CsvRow::WholeOr(std::string_view column, int64_t least,
                        int64_t fallback) const {
  return Has(column) ? Whole(column, least) : fallback;
}

double CsvRow::Positive(std::string_view column) const {
  const std::optional<double> number = NumberIn(Text(column));
  if (!number || !(*number > 0)) Fail(column, "a number above 0");
  return *number;
}

double CsvRow::PositiveOr(std::string_view column, double fallback) const {
  return Has(column) ? Positive(column) : fallback;
}

void CsvRow::Fail(std::string_view column, std::string_view expected) const {
  const bool exists = table_->places.contains(column);
  throw InputError(fmt::format("{}: line {}: {}: expected {}, found {}",
                               table_->file, table_->lines[row_], column,
                               expected,
                               !exists                ? "no such column"
                               : Text(column).empty() ? "nothing"
                                                      : Quoted(Text(column))));
}

std::string CsvCell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string cell = "\"";
  for (const char c : text) {
    if (c == '"') cell += '"';
    cell += c;
  }
  return cell + '"';
}

}  // namespace acplan::graph
