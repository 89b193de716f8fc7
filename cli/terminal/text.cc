#include "cli/terminal/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "graph/base/byte_size.h"

namespace acplan::cli {

namespace {

// Noise of a binary fraction must not lift an exact decimal.
double CeilAt(double value, double digits) {
  return std::max(0.0, std::ceil(value * digits - 1e-7)) / digits;
}

}  // namespace

size_t TextWidth(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
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

std::string NoteOn(problems::MemoryModel model, const Terminal& terminal) {
  return terminal.Dim(fmt::format("note: {}", Caveat(model))) + "\n";
}

void Table::AddRow(std::vector<std::string> cells) {
  if (cells.size() > align_.size()) {
    throw std::logic_error("a row of a table has more cells than columns");
  }
  rows_.push_back(std::move(cells));
}

void Table::AddRule() { rows_.emplace_back(); }

std::string Table::ToString(const Terminal& terminal) const {
  std::vector<size_t> widths(align_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], TextWidth(row[c]));
    }
  }
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const auto& row = rows_[r];
    std::string line;
    if (row.empty()) {
      for (size_t i = 0; i < total; ++i) line += "─";
    }
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - TextWidth(row[c]), ' ');
      if (c > 0) line += "  ";
      line += align_[c] == Align::kLeft ? row[c] + pad : pad + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += r == 0        ? terminal.Bold(line)
            : row.empty() ? terminal.Dim(line)
                          : line;
    text += "\n";
  }
  return text;
}

}  // namespace acplan::cli
