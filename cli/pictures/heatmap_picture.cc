#include "cli/pictures/heatmap_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/pictures/picture.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

using costmodel::RateMap;

constexpr int kLeft = 80;
constexpr int kTop = 56;
constexpr int kBottom = 64;
constexpr int kBarWidth = 18;
constexpr int kRight = 130;
constexpr int kLeastCell = 46;
constexpr int kLeastHeight = 184;  // room for the axis and the colour bar

std::string CellText(const RateMap::Cell& cell) {
  return fmt::format("{:.1f}", *cell.rate);
}

std::string Text(double x, double y, std::string_view anchor,
                 std::string_view text, std::string_view more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
      anchor, more, Escaped(text));
}

class Heatmap {
 public:
  Heatmap(const RateMap& map, std::string_view title)
      : map_(map),
        title_(title),
        tensor_pars_(map.TensorPars()),
        pipeline_pars_(map.PipelinePars()),
        least_(map.Least()),
        most_(map.Most()) {
    cell_height_ = std::max(
        kLeastCell, kLeastHeight / static_cast<int>(tensor_pars_.size()));
    for (const RateMap::Cell& cell : map.cells) {
      if (!cell.rate) continue;
      const auto letters = static_cast<int>(CellText(cell).size());
      cell_width_ = std::max(cell_width_, 14 + 8 * letters);
    }
  }

  std::string Svg() const {
    const int width = kLeft + Width() + kRight;
    const int height = kTop + Height() + kBottom;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
        "height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
        "font-size=\"13\" role=\"img\">\n"
        "<title>{2}</title>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        width, height, Escaped(title_.empty() ? "Sample rate" : title_));
    if (!title_.empty()) {
      svg += Text(kLeft + Width() / 2.0, 30, "middle", title_,
                  " font-size=\"16\"");
    }
    return svg + Cells() + Axes() + ColorBar() + "</svg>\n";
  }

  std::string Table() const {
    std::string table =
        "<table>\n<tr><th>TP \\ PP</th>" +
        Joined(pipeline_pars_,
               [](int64_t pp) { return fmt::format("<th>{}</th>", pp); }) +
        "</tr>\n";
    for (const int64_t tp : tensor_pars_) {
      table += fmt::format("<tr><th>{}</th>", tp) +
               Joined(pipeline_pars_,
                      [&](int64_t pp) {
                        const RateMap::Cell* cell = map_.Find(tp, pp);
                        return fmt::format("<td>{}</td>",
                                           cell ? Escaped(cell->text) : "");
                      }) +
               "</tr>\n";
    }
    return table + "</table>\n";
  }

 private:
  template <typename Function>
  static std::string Joined(const std::vector<int64_t>& values,
                            Function text_of) {
    std::string text;
    for (const int64_t value : values) text += text_of(value);
    return text;
  }

  int Width() const {
    return cell_width_ * static_cast<int>(pipeline_pars_.size());
  }
  int Height() const {
    return cell_height_ * static_cast<int>(tensor_pars_.size());
  }
  int LeftOf(size_t column) const {
    return kLeft + cell_width_ * static_cast<int>(column);
  }
  int TopOf(size_t row) const {
    return kTop + Height() - cell_height_ * static_cast<int>(row + 1);
  }

  std::string CellAt(size_t row, size_t column) const {
    const int64_t tp = tensor_pars_[row];
    const int64_t pp = pipeline_pars_[column];
    const RateMap::Cell* cell = map_.Find(tp, pp);
    const double share =
        cell && most_ > least_ ? (*cell->rate - least_) / (most_ - least_) : 0;
    std::string text = fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\">"
        "<title>TP {}, PP {}: {}</title></rect>\n",
        LeftOf(column), TopOf(row), cell_width_, cell_height_,
        cell ? HotColor(share) : "#d0d0d0", tp, pp,
        cell ? Escaped(cell->text) + " samples/s" : "none");
    if (cell == nullptr) return text;
    const bool is_dark = *cell->rate > DarkTextThreshold(map_);
    return text + Text(LeftOf(column) + cell_width_ / 2.0,
                       TopOf(row) + cell_height_ / 2.0 + 4.5, "middle",
                       CellText(*cell),
                       fmt::format(" fill=\"{}\" pointer-events=\"none\"",
                                   is_dark ? "black" : "white"));
  }

  std::string Cells() const {
    std::string cells;
    for (size_t row = 0; row < tensor_pars_.size(); ++row)
      for (size_t column = 0; column < pipeline_pars_.size(); ++column)
        cells += CellAt(row, column);
    return cells + fmt::format(
                       "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
                       "fill=\"none\" stroke=\"#222222\"/>\n",
                       kLeft, kTop, Width(), Height());
  }

  std::string Axes() const {
    const double bottom = kTop + Height();
    const double middle = kTop + Height() / 2.0;
    std::string axes;
    for (size_t column = 0; column < pipeline_pars_.size(); ++column) {
      axes += Text(LeftOf(column) + cell_width_ / 2.0, bottom + 20, "middle",
                   fmt::to_string(pipeline_pars_[column]));
    }
    for (size_t row = 0; row < tensor_pars_.size(); ++row) {
      axes += Text(kLeft - 8, TopOf(row) + cell_height_ / 2.0 + 4.5, "end",
                   fmt::to_string(tensor_pars_[row]));
    }
    return axes +
           Text(kLeft + Width() / 2.0, bottom + 46, "middle",
                "Pipeline Parallelism") +
           Text(22, middle, "middle", "Tensor Parallelism",
                fmt::format(" transform=\"rotate(-90 22 {:.1f})\"", middle));
  }

  std::string ColorBar() const {
    constexpr int kSteps = 64;
    constexpr int kTicks = 4;
    const double bar_left = kLeft + Width() + 24;
    const double height = Height();
    std::string bar;
    for (int step = 0; step < kSteps; ++step) {
      bar += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" "
          "fill=\"{}\"/>\n",
          bar_left, kTop + height * (kSteps - 1 - step) / kSteps, kBarWidth,
          height / kSteps + 0.3, HotColor((step + 0.5) / kSteps));
    }
    for (int tick = 0; tick <= kTicks; ++tick) {
      const double share = static_cast<double>(tick) / kTicks;
      bar += Text(bar_left + kBarWidth + 6, kTop + height * (1 - share) + 4.5,
                  "start",
                  fmt::format("{:.4g}", least_ + share * (most_ - least_)));
    }
    return bar + Text(bar_left, kTop - 16, "start", "samples/s");
  }

  const RateMap& map_;
  std::string_view title_;
  std::vector<int64_t> tensor_pars_;
  std::vector<int64_t> pipeline_pars_;
  double least_;
  double most_;
  int cell_width_ = kLeastCell;
  int cell_height_ = kLeastCell;
};

}  // namespace

double DarkTextThreshold(const RateMap& map) {
  return map.Least() + (map.Most() - map.Least()) * 0.30;
}

std::string HeatmapSvg(const RateMap& map, std::string_view title) {
  return Heatmap(map, title).Svg();
}

std::string HeatmapHtml(const RateMap& map, std::string_view title) {
  const Heatmap heatmap(map, title);
  return HtmlPage(title.empty() ? "Sample rate" : title,
                  heatmap.Svg() + heatmap.Table(), "");
}

}  // namespace acplan::cli
