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

}  // namespace acplan::cli
