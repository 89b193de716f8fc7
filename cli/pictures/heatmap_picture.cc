#include "cli/pictures/heatmap_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/pictures/picture.h"
#include "cli/pictures/rate_lines.h"

namespace acplan::cli {

namespace {

using costmodel::RateMap;

constexpr int kLeft = 80;
constexpr int kTop = 56;
constexpr int kBottom = 64;
constexpr int kRight = 130;
// A picture is about this large; cells of large maps stay readable.
constexpr int kUsualWidth = 480;
constexpr int kUsualHeight = 300;
constexpr int kLeastCell = 46;
constexpr int kMostCell = 120;
constexpr std::string_view kGrey = "#d0d0d0";

class Heatmap {
 public:
  Heatmap(const RateMap& map, std::string_view title)
      : map_(map),
        title_(title.empty() ? kRateTitle : title),
        tensor_pars_(map.TensorPars()),
        pipeline_pars_(map.PipelinePars()),
        least_(map.Least()),
        most_(map.Most()) {
    cell_width_ = CellSize(kUsualWidth, pipeline_pars_.size());
    cell_height_ = CellSize(kUsualHeight, tensor_pars_.size());
    for (const RateMap::Cell& cell : map.cells) {
      if (!cell.rate) continue;
      const auto letters = static_cast<int>(RateText(*cell.rate).size());
      cell_width_ = std::max(cell_width_, 14 + 8 * letters);
    }
  }

  std::string Svg() const {
    // A letter of the title is about 9 wide.
    const int width = std::max(kLeft + Width() + kRight,
                               40 + 9 * static_cast<int>(title_.size()));
    const int height = kTop + Height() + kBottom;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
        "height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
        "font-size=\"13\" role=\"img\">\n"
        "<title>{2}</title>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        width, height, Escaped(title_));
    svg += SvgText(width / 2.0, 24, "middle", title_, " font-size=\"16\"");
    return svg + Cells() + Axes() + Legend() + "</svg>\n";
  }

 private:
  static int CellSize(int whole, size_t cells) {
    return std::clamp(whole / static_cast<int>(cells), kLeastCell, kMostCell);
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
    const std::string color = cell ? HotColor(share) : std::string(kGrey);
    std::string text = fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\">"
        "<title>TP {}, PP {}: {}</title></rect>\n",
        LeftOf(column), TopOf(row), cell_width_, cell_height_, color, tp, pp,
        cell ? Escaped(cell->text) + " samples/s" : "none");
    if (cell == nullptr) return text;
    return text + SvgText(LeftOf(column) + cell_width_ / 2.0,
                          TopOf(row) + cell_height_ / 2.0 + 4.5, "middle",
                          RateText(*cell->rate),
                          fmt::format(" fill=\"{}\" pointer-events=\"none\"",
                                      TextColorOn(color)));
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
      axes += SvgText(LeftOf(column) + cell_width_ / 2.0, bottom + 20, "middle",
                      fmt::to_string(pipeline_pars_[column]));
    }
    for (size_t row = 0; row < tensor_pars_.size(); ++row) {
      axes += SvgText(kLeft - 8, TopOf(row) + cell_height_ / 2.0 + 4.5, "end",
                      fmt::to_string(tensor_pars_[row]));
    }
    return axes +
           SvgText(kLeft + Width() / 2.0, bottom + 46, "middle",
                   "Pipeline Parallelism") +
           SvgText(22, middle, "middle", "Tensor Parallelism",
                   fmt::format(" transform=\"rotate(-90 22 {:.1f})\"", middle));
  }

  // Returns the legend of the colours, and of grey if a cell has it.
  std::string Legend() const {
    const double bar_left = kLeft + Width() + 24;
    std::string legend =
        ColorBar({.least = least_, .most = most_}, bar_left, kTop, Height());
    const auto rates = std::ranges::count_if(
        map_.cells,
        [](const RateMap::Cell& cell) { return cell.rate.has_value(); });
    if (static_cast<size_t>(rates) ==
        tensor_pars_.size() * pipeline_pars_.size())
      return legend;
    legend += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"18\" height=\"14\" "
        "fill=\"{}\"/>\n",
        bar_left, kTop + Height() + 14, kGrey);
    return legend +
           SvgText(bar_left + 24, kTop + Height() + 26, "start", "no rate");
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
  return HtmlPage(title.empty() ? kRateTitle : title,
                  HeatmapSvg(map, title) + RateTable(map), "");
}

}  // namespace acplan::cli
