#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"
#include "problems/model/memory_model.h"
#include "solver/search.h"

namespace acplan::cli {

// Returns the columns of a text on a terminal: its code points, which is enough
// for all that is printed here; colours take none.
size_t TextWidth(std::string_view text);

// Breaks each line that is wider than the screen at spaces, and indents the
// rest by two more. Returns the text unchanged if stdout is no screen.
std::string BrokenLines(std::string_view text, const Terminal& terminal);

// Returns a number as tables show it, as do the functions below.
std::string FormatMs(double ms);            // "16.46 ms"
std::string FormatRatioUp(double ratio);    // four digits, never rounded down
std::string FormatPercentUp(double ratio);  // "6.47%", never rounded down
std::string FormatChange(double from, double to);  // "-30.7%"
// Formats bytes for a person and, in full, for a flag: "9.27 GiB (9,953,203,712 bytes)".
std::string FormatBytesExactly(int64_t bytes);
std::string FormatCount(int64_t n);  // "1,234,567"

// Returns "memory model snapshot without states, world size 8".
std::string QuestionText(const problems::MemoryOptions& memory);

// Returns "best 12.30 ms  bound 12.00 ms  gap 2.439%  1234 labels or nodes  2.0
// s".
std::string ProgressText(const solver::SearchProgress& progress);

// Returns the line on the limits of figures, such as Caveat of a memory model.
std::string NoteOn(std::string_view caveat, const Terminal& terminal);

// A table in plain text: columns padded to the widest cell, the first
// left-aligned by default, two spaces apart, no trailing spaces. On a screen
// that is too narrow for it, long names lose their middles, and if that is not
// enough, columns stand below each other, with the first one beside each part.
class Table {
 public:
  enum class Align { kLeft, kRight };

  explicit Table(std::vector<Align> align) : align_(std::move(align)) {}
  // Adds a row, which may be shorter than the table is wide.
  void AddRow(std::vector<std::string> cells);
  void AddRule();
  // Returns the table, whose first row is a heading.
  std::string ToString(const Terminal& terminal) const;

 private:
  // Returns the widths of the columns, those of names as narrow as needed and
  // allowed.
  std::vector<size_t> Widths(size_t most) const;
  bool HasCell(size_t row, size_t column) const;
  // Returns the columns to show: on a screen that is too narrow, those with a cell.
  std::vector<size_t> ShownColumns(bool is_narrow) const;
  std::string Part(const std::vector<size_t>& columns,
                   const std::vector<size_t>& widths,
                   const Terminal& terminal) const;

  std::vector<Align> align_;
  std::vector<std::vector<std::string>> rows_;  // an empty one is a rule
};

}  // namespace acplan::cli
