#include "cli/terminal/memory_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace acplan::cli {

namespace {

constexpr int kRows = 8;
constexpr int kEighths = 8;  // of a row, which blocks tell apart
constexpr size_t kLabel = 10;
constexpr std::array<const char*, kEighths + 1> kBlocks = {
    " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

double LengthOf(const MemoryCurve& curve, bool in_time) {
  return in_time ? std::accumulate(curve.ms.begin(), curve.ms.end(), 0.0)
                 : static_cast<double>(curve.live_bytes.size());
}

// Returns the most bytes in each column of a plot `length` wide; 0 beyond the
// curve's end.
std::vector<int64_t> Columns(const MemoryCurve& curve, bool in_time,
                             double length, size_t columns) {
  std::vector<int64_t> most(columns, 0);
  const double scale = static_cast<double>(columns) / length;
  double begin = 0;
  for (size_t k = 0; k < curve.live_bytes.size(); ++k) {
    const double end = begin + (in_time ? curve.ms[k] : 1.0);
    const size_t last = columns - 1;
    const auto first = std::min(static_cast<size_t>(begin * scale), last);
    // A step that ends where a column begins is not in that column.
    const auto after = std::min(
        static_cast<size_t>(std::max(std::ceil(end * scale), 1.0)), columns);
    for (size_t c = first; c < std::max(after, first + 1); ++c) {
      most[c] = std::max(most[c], curve.live_bytes[k]);
    }
    begin = end;
  }
  return most;
}

// Returns the height in eighths of a row, rounded so that any bytes in use
// show.
int HeightOf(int64_t bytes, int64_t top) {
  if (bytes <= 0) return 0;
  const double share = static_cast<double>(bytes) / static_cast<double>(top);
  return std::max(1, static_cast<int>(std::lround(share * kRows * kEighths)));
}

struct Canvas {
  std::vector<int64_t> blocks, dots;
  int64_t top = 1;
  std::optional<int64_t> limit;

  // Returns a row of the plot. `row` counts from the bottom.
  std::string Row(int row, const Terminal& terminal) const {
    const int floor = row * kEighths;
    const auto is_here = [&](int64_t bytes) {
      const int height = HeightOf(bytes, top);
      return height > floor && height <= floor + kEighths;
    };
    std::string text;
    const auto is_dot = [&](size_t c) {
      return !dots.empty() && is_here(dots[c]);
    };
    for (size_t c = 0; c < blocks.size();) {
      const int filled =
          std::clamp(HeightOf(blocks[c], top) - floor, 0, kEighths);
      if (filled > 0) {
        text += kBlocks[filled];
        ++c;
        continue;
      }
      // A run of columns with the same character.
      const bool dotted = is_dot(c);
      std::string run;
      for (; c < blocks.size() && HeightOf(blocks[c], top) <= floor &&
             is_dot(c) == dotted;
           ++c) {
        run += dotted ? "·" : limit && is_here(*limit) ? "╌" : " ";
      }
      text += dotted                     ? terminal.Dim(run)
              : limit && is_here(*limit) ? terminal.Yellow(run)
                                         : run;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }
};

std::string SizeLabel(double bytes, int64_t top) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const bool is_large = static_cast<double>(top) >= kGiB;
  return fmt::format("{:.2f} {}", bytes / (is_large ? kGiB : 1024.0 * 1024),
                     is_large ? "GiB" : "MiB");
}

}  // namespace

std::string DrawMemory(const std::vector<MemoryCurve>& curves,
                       std::optional<int64_t> limit_bytes,
                       const Terminal& terminal) {
  if (curves.empty() || curves.front().live_bytes.empty()) return "";
  if (terminal.Columns() < 40) return "";
  const size_t columns = std::min<size_t>(terminal.Columns() - kLabel - 3, 100);
  const bool in_time = std::ranges::all_of(
      curves, [](const MemoryCurve& c) { return LengthOf(c, true) > 0; });
  double length = 0;
  int64_t top = limit_bytes.value_or(1);
  for (const MemoryCurve& curve : curves) {
    length = std::max(length, LengthOf(curve, in_time));
    top = std::max(top, std::ranges::max(curve.live_bytes));
  }
  Canvas canvas{.blocks = Columns(curves.back(), in_time, length, columns),
                .dots = {},
                .top = top,
                .limit = limit_bytes};
  if (curves.size() > 1) {
    canvas.dots = Columns(curves.front(), in_time, length, columns);
  }
  std::string text;
  for (int row = kRows - 1; row >= 0; --row) {
    const bool has_label = row == kRows - 1 || row == kRows / 2 - 1;
    text += fmt::format(
        "{:>{}} {}{}\n",
        has_label ? SizeLabel(static_cast<double>(top) * (row + 1) / kRows, top)
                  : "",
        kLabel, has_label ? "┤" : "│", canvas.Row(row, terminal));
  }
  std::string line;
  for (size_t c = 0; c < columns; ++c) line += "─";
  const std::string end = in_time ? fmt::format("{:.2f} ms", length)
                                  : fmt::format("{:.0f} operators", length);
  text += fmt::format("{:>{}} └{}\n{:>{}}  0{:>{}}\n", "", kLabel, line, "",
                      kLabel, end, columns - 1);
  std::string legend =
      curves.size() > 1 ? "█ with the plan   " + terminal.Dim("·") + " without"
                        : "█ bytes in use";
  if (limit_bytes) legend += "   " + terminal.Yellow("╌") + " budget";
  return text + fmt::format("{:>{}}  {}\n", "", kLabel, legend);
}

}  // namespace acplan::cli
