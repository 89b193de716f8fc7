#include "cli/pictures/rate_lines.h"

#include <fmt/format.h>

namespace acplan::cli {

std::string RateLines(const costmodel::RateMap& map) {
  std::string lines;
  for (const costmodel::RateMap::Cell& cell : map.cells) {
    lines += fmt::format("{},{} {}\n", cell.tensor_par, cell.pipeline_par,
                         cell.rate ? "is " + cell.text : "has none");
  }
  return lines;
}

std::string RateText(double rate) {
  return rate >= 1000 ? fmt::format("{:.0f}", rate)
                      : fmt::format("{:.4g}", rate);
}

std::string RateTable(const costmodel::RateMap& map) {
  std::string table =
      "<table>\n<caption>Samples a second; TP: tensor parallelism, PP: "
      "pipeline "
      "parallelism</caption>\n<tr><th>TP \\ PP</th>";
  for (const int64_t pp : map.PipelinePars()) {
    table += fmt::format("<th>{}</th>", pp);
  }
  for (const int64_t tp : map.TensorPars()) {
    table += fmt::format("</tr>\n<tr><th>{}</th>", tp);
    for (const int64_t pp : map.PipelinePars()) {
      const costmodel::RateMap::Cell* cell = map.Find(tp, pp);
      table += fmt::format("<td>{}</td>", cell ? RateText(*cell->rate) : "");
    }
  }
  return table + "</tr>\n</table>\n";
}

}  // namespace acplan::cli
