#include "cli/terminal/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace acplan::cli {

namespace {

constexpr int kTicks = 4;

std::string Styled(const Plot::Pen& pen, const Terminal& terminal) {
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
  // Written so that NaN is outside, too.
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
    const double last_y = std::clamp(ys[column - 1], -1.0, 2.0);
    const double step = 1.0 / (kRows - 1);
    for (double middle = std::min(last_y, y) + step;
         middle < std::max(last_y, y) - step / 2; middle += step) {
      AddPoint(x, middle, pen);
    }
  }
}

void Plot::AddLegend(const Pen& pen, std::string_view text) {
  legend_.emplace_back(pen, text);
}

template <typename Function>
std::string Plot::Rows(const Terminal& terminal, int columns,
                       Function label_of) const {
  std::string text;
  for (int row = 0; row < kRows; ++row) {
    const bool has_tick = row % ((kRows - 1) / kTicks) == 0;
    text += fmt::format(
        "{:>{}} {}",
        has_tick ? label_of(1 - static_cast<double>(row) / (kRows - 1)) : "",
        columns, has_tick ? "┤" : "│");
    const std::vector<Pen>& pens = rows_[row];
    const auto end = std::find_if(pens.rbegin(), pens.rend(), [](const Pen& p) {
                       return !p.glyph.empty();
                     }).base();
    for (auto pen = pens.begin(); pen != end; ++pen) {
      text += pen->glyph.empty() ? " " : Styled(*pen, terminal);
    }
    text += "\n";
  }
  text += std::string(columns, ' ') + " └";
  for (int column = 0; column < kColumns; ++column) {
    text += column % ((kColumns - 1) / kTicks) == 0 ? "┬" : "─";
  }
  return text + "\n";
}

std::string Plot::Legend(const Terminal& terminal) const {
  std::string legend;
  for (const auto& [pen, what] : legend_) {
    legend += (legend.empty() ? "      " : "   ") + Styled(pen, terminal) +
              " " + what;
  }
  return legend + "\n";
}

std::string Plot::ToString(const Terminal& terminal, std::string_view x_label,
                           std::string_view y_label) const {
  const auto label_of = [](double share) {
    return fmt::format("{:4.2f}", share);
  };
  std::string ticks = "    ";
  for (int tick = 0; tick <= kTicks; ++tick) {
    ticks +=
        fmt::format("{:<18}", label_of(static_cast<double>(tick) / kTicks));
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  return std::string(y_label) + "\n" + Rows(terminal, 4, label_of) + ticks +
         "  " + std::string(x_label) + "\n" + Legend(terminal);
}

Plot::Axis Plot::Axis::OfMs(std::string_view name, double most_ms) {
  if (most_ms < 1) return {fmt::format("{} (µs)", name), 0, most_ms * 1000};
  if (most_ms < 10'000) return {fmt::format("{} (ms)", name), 0, most_ms};
  return {fmt::format("{} (s)", name), 0, most_ms / 1000};
}

Plot::Axis Plot::Axis::OfBytes(std::string_view name, double least,
                               double most) {
  constexpr double kMiB = 1024.0 * 1024;
  const bool is_large = most >= 1024 * kMiB;
  const double unit = is_large ? 1024 * kMiB : kMiB;
  return {fmt::format("{} ({})", name, is_large ? "GiB" : "MiB"), least / unit,
          most / unit};
}

std::string Plot::ToString(const Terminal& terminal, const Axis& x,
                           const Axis& y) const {
  const auto label_of = [](const Axis& axis, double share) {
    const double value = axis.least + share * (axis.most - axis.least);
    std::string text = fmt::format("{:.4g}", value);
    return text.size() > 5 ? fmt::format("{:.3g}", value) : text;
  };
  int label_columns = 5;
  for (int tick = 0; tick <= kTicks; ++tick) {
    const std::string label = label_of(y, static_cast<double>(tick) / kTicks);
    label_columns = std::max(label_columns, static_cast<int>(label.size()));
  }
  // A number stands below its tick, the last one ends there.
  std::string ticks(label_columns + 2, ' ');
  for (int tick = 0; tick <= kTicks; ++tick) {
    const std::string label = label_of(x, static_cast<double>(tick) / kTicks);
    const size_t place = label_columns + 2 + tick * ((kColumns - 1) / kTicks);
    const size_t shift = tick == kTicks ? label.size() - 1 : label.size() / 2;
    ticks.resize(std::max(ticks.size(), place - shift), ' ');
    ticks += label;
  }
  return y.label + "\n" +
         Rows(terminal, label_columns,
              [&](double share) { return label_of(y, share); }) +
         ticks + "\n" +
         fmt::format("{:>{}}\n", x.label, label_columns + 2 + kColumns) +
         Legend(terminal);
}

}  // namespace acplan::cli
