#include "cli/terminal/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace acplan::cli {

namespace {

std::string Drawn(const Plot::Pen& pen, const Terminal& terminal) {
  switch (pen.style) {
    case Plot::Style::kDim:
      return terminal.Dim(pen.glyph);
    case Plot::Style::kGreen:
      return terminal.Green(pen.glyph);
    case Plot::Style::kYellow:
      return terminal.Yellow(pen.glyph);
    case Plot::Style::kPlain:
      break;
  }
  return pen.glyph;
}

}  // namespace

Plot::Plot() : rows_(kRows, std::vector<Pen>(kColumns)) {}

void Plot::AddPoint(double x, double y, const Pen& pen) {
  const double column = std::round(x * (kColumns - 1));
  const double row = std::round((1 - y) * (kRows - 1));
  // So that NaN is outside too.
  if (column >= 0 && column < kColumns && row >= 0 && row < kRows) {
    rows_[static_cast<int>(row)][static_cast<int>(column)] = pen;
  }
}

void Plot::AddColumns(const std::vector<double>& ys, const Pen& pen) {
  for (int column = 0; column < kColumns; ++column) {
    const double x = static_cast<double>(column) / (kColumns - 1);
    const double y = std::clamp(ys[column], -1.0, 2.0);
    AddPoint(x, y, pen);
    if (column == 0 || std::isnan(y) || std::isnan(ys[column - 1])) continue;
    const double left = std::clamp(ys[column - 1], -1.0, 2.0);
    const double step = 1.0 / (kRows - 1);
    for (double middle = std::min(left, y) + step;
         middle < std::max(left, y) - step / 2; middle += step) {
      AddPoint(x, middle, pen);
    }
  }
}

void Plot::AddLegend(const Pen& pen, std::string_view text) {
  legend_.emplace_back(pen, text);
}

std::string Plot::ToString(const Terminal& terminal, std::string_view x_label,
                           std::string_view y_label) const {
  constexpr int kTicks = 4;
  std::string text = std::string(y_label) + "\n";
  for (int row = 0; row < kRows; ++row) {
    const bool has_tick = row % ((kRows - 1) / kTicks) == 0;
    std::string line =
        has_tick ? fmt::format("{:4.2f} ┤",
                               1 - static_cast<double>(row) / (kRows - 1))
                 : "     │";
    const std::vector<Pen>& pens = rows_[row];
    const auto end = std::find_if(pens.rbegin(), pens.rend(), [](const Pen& p) {
                       return !p.glyph.empty();
                     }).base();
    for (auto pen = pens.begin(); pen != end; ++pen) {
      line += pen->glyph.empty() ? " " : Drawn(*pen, terminal);
    }
    text += line + "\n";
  }
  std::string axis = "     └";
  std::string ticks = "    ";
  for (int column = 0; column < kColumns; ++column) {
    const bool has_tick = column % ((kColumns - 1) / kTicks) == 0;
    axis += has_tick ? "┬" : "─";
    if (has_tick) {
      ticks += fmt::format("{:<18.2f}",
                           static_cast<double>(column) / (kColumns - 1));
    }
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  text += axis + "\n" + ticks + "  " + std::string(x_label) + "\n";
  std::string legend;
  for (const auto& [pen, what] : legend_) {
    legend +=
        (legend.empty() ? "      " : "   ") + Drawn(pen, terminal) + " " + what;
  }
  return text + legend + "\n";
}

}  // namespace acplan::cli
