#include "cli/terminal/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "graph/base/byte_size.h"

namespace acplan::cli {

namespace {

// Rounds up, so that noise of a binary fraction does not lift an exact decimal.
double CeilAt(double value, double digits) {
  return std::max(0.0, std::ceil(value * digits - 1e-7)) / digits;
}

// Returns the number of bytes of a line up to the last space within so many
// columns, or up to the first one beyond if a word is longer.
size_t BreakWithin(std::string_view line, size_t columns) {
  const size_t first = line.find_first_not_of(' ');
  size_t length = std::string_view::npos;
  for (size_t at = line.find(' ', std::min(first, line.size()));
       at != std::string_view::npos; at = line.find(' ', at + 1)) {
    const bool fits = TextWidth(line.substr(0, at)) <= columns;
    if (fits || length == std::string_view::npos) length = at;
    if (!fits) break;
  }
  return std::min(length, line.size());
}

std::string BrokenLine(std::string_view line, size_t columns) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size()) + 2;
  std::string broken;
  std::string rest(line);
  while (TextWidth(rest) > columns) {
    const size_t at = BreakWithin(rest, columns);
    if (at == rest.size()) break;
    broken += rest.substr(0, at) + "\n";
    const size_t next = std::min(rest.find_first_not_of(' ', at), rest.size());
    rest = std::string(std::min(indent, columns / 2), ' ') + rest.substr(next);
  }
  return broken + rest;
}

// Returns a name without its middle, in so many columns (at least 3).
std::string Shortened(const std::string& name, size_t columns) {
  if (TextWidth(name) <= columns) return name;
  std::vector<std::string> characters;
  for (const char c : name) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (continues && !characters.empty()) {
      characters.back() += c;
    } else {
      characters.emplace_back(1, c);
    }
  }
  // The end tells modules apart.
  const size_t tail = (columns - 1) * 2 / 3;
  std::string text;
  for (size_t i = 0; i < columns - 1 - tail; ++i) text += characters[i];
  text += "…";
  for (size_t i = characters.size() - tail; i < characters.size(); ++i) {
    text += characters[i];
  }
  return text;
}

size_t Total(const std::vector<size_t>& widths) {
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  return total;
}

}  // namespace

size_t TextWidth(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {  // to the letter that ends a colour
      i = std::min(text.find('m', i), text.size());
      continue;
    }
    width += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 ? 1 : 0;
  }
  return width;
}

std::string BrokenLines(std::string_view text, const Terminal& terminal) {
  if (!terminal.IsScreen()) return std::string(text);
  std::string broken;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    broken += BrokenLine(text.substr(0, end), terminal.Columns());
    if (end < text.size()) broken += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return broken;
}

std::string FormatMs(double ms) { return fmt::format("{:.2f} ms", ms); }

std::string FormatRatioUp(double ratio) {
  return fmt::format("{:.4f}", CeilAt(ratio, 1e4));
}

std::string FormatPercentUp(double ratio) {
  return fmt::format("{:.2f}%", CeilAt(100 * ratio, 1e2));
}

std::string FormatChange(double from, double to) {
  if (from == 0) return "";
  return fmt::format("{:+.1f}%", 100 * (to - from) / from);
}

std::string FormatCount(int64_t n) {
  std::string digits = fmt::format("{}", n);
  const int first = n < 0 ? 1 : 0;
  for (int place = static_cast<int>(digits.size()) - 3; place > first;
       place -= 3) {
    digits.insert(static_cast<size_t>(place), ",");
  }
  return digits;
}

std::string FormatBytesExactly(int64_t bytes) {
  return fmt::format("{} ({} bytes)", graph::FormatBytes(bytes),
                     FormatCount(bytes));
}

std::string QuestionText(const problems::MemoryOptions& memory) {
  std::string text =
      fmt::format("memory model {}", problems::ToString(memory.model));
  if (memory.without_states) text += " without states";
  if (memory.world_size > 1) {
    text += fmt::format(", world size {}", memory.world_size);
  }
  if (!memory.fsdp_units.empty()) {
    text += fmt::format(", {} FSDP units", memory.fsdp_units.size());
  }
  return text;
}

std::string ProgressText(const solver::SearchProgress& progress) {
  std::string text = std::isfinite(progress.best)
                         ? fmt::format("best {:.2f} ms", progress.best)
                         : std::string("no plan yet");
  if (std::isfinite(progress.bound)) {
    text += fmt::format("  bound {:.2f} ms", progress.bound);
    if (std::isfinite(progress.best) && progress.best > 0) {
      text +=
          fmt::format("  gap {:.3f}%",
                      100 * (progress.best - progress.bound) / progress.best);
    }
  }
  return text + fmt::format("  {} labels or nodes  {:.1f} s", progress.nodes,
                            progress.seconds);
}

std::string NoteOn(std::string_view caveat, const Terminal& terminal) {
  return terminal.Dim(fmt::format("note: {}", caveat)) + "\n";
}

void Table::AddRow(std::vector<std::string> cells) {
  if (cells.size() > align_.size()) {
    throw std::logic_error("a row of a table has more cells than columns");
  }
  rows_.push_back(std::move(cells));
}

void Table::AddRule() { rows_.emplace_back(); }

std::vector<size_t> Table::Widths(size_t most) const {
  constexpr size_t kLeastName = 20;
  std::vector<size_t> widths(align_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], TextWidth(row[c]));
    }
  }
  while (Total(widths) > most) {
    size_t widest = widths.size();
    for (size_t c = 0; c < widths.size(); ++c) {
      if (align_[c] == Align::kLeft && widths[c] > kLeastName &&
          (widest == widths.size() || widths[c] > widths[widest])) {
        widest = c;
      }
    }
    if (widest == widths.size()) break;
    widths[widest] -=
        std::min(Total(widths) - most, widths[widest] - kLeastName);
  }
  return widths;
}

bool Table::HasCell(size_t row, size_t column) const {
  return column < rows_[row].size() && !rows_[row][column].empty();
}

std::vector<size_t> Table::ShownColumns(bool is_narrow) const {
  std::vector<size_t> columns;
  for (size_t c = 0; c < align_.size(); ++c) {
    bool has_cell = c == 0 || !is_narrow;
    for (size_t r = 1; r < rows_.size() && !has_cell; ++r)
      has_cell = HasCell(r, c);
    if (has_cell) columns.push_back(c);
  }
  return columns;
}

std::string Table::Part(const std::vector<size_t>& columns,
                        const std::vector<size_t>& widths,
                        const Terminal& terminal) const {
  size_t total = 2 * (columns.size() - 1);
  for (const size_t c : columns) total += widths[c];
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const auto& row = rows_[r];
    // Below the first part, a name alone says nothing.
    if (r > 0 && !row.empty() && columns.size() > 1 && columns[1] > 1 &&
        std::ranges::none_of(columns.begin() + 1, columns.end(),
                             [&](size_t c) { return HasCell(r, c); })) {
      continue;
    }
    std::string line;
    if (row.empty()) {
      for (size_t i = 0; i < total; ++i) line += "─";
    }
    for (const size_t c : columns) {
      if (c >= row.size()) break;
      const std::string cell = Shortened(row[c], widths[c]);
      const std::string pad(widths[c] - TextWidth(cell), ' ');
      if (c != columns.front()) line += "  ";
      line += align_[c] == Align::kLeft ? cell + pad : pad + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += r == 0        ? terminal.Bold(line)
            : row.empty() ? terminal.Dim(line)
                          : line;
    text += "\n";
  }
  return text;
}

std::string Table::ToString(const Terminal& terminal) const {
  const size_t most = terminal.IsScreen() ? terminal.Columns() : SIZE_MAX;
  const std::vector<size_t> widths = Widths(most);
  std::string text;
  const std::vector<size_t> visible_columns =
      ShownColumns(Total(widths) > most);
  for (size_t next = 0; next < visible_columns.size();) {
    std::vector<size_t> columns;
    size_t total = 0;
    if (next > 0) {
      columns.push_back(0);
      total = widths[0];
    }
    // Adds at least one column that is not there yet.
    for (bool is_first = true;
         next < visible_columns.size() &&
         (is_first || total + 2 + widths[visible_columns[next]] <= most);
         is_first = false) {
      total += widths[visible_columns[next]] + (columns.empty() ? 0 : 2);
      columns.push_back(visible_columns[next++]);
    }
    if (!text.empty()) text += "\n";
    text += Part(columns, widths, terminal);
  }
  return text;
}

}  // namespace acplan::cli
