#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The memory of a step as a drawing of eight lines and an axis.
struct MemoryCurve {
  std::vector<int64_t> live_bytes;  // while each step runs
  std::vector<double> ms;           // of each step
};

// Draws blocks for the last curve, and a line of dots where the first one, if
// another, is higher. Each column shows the most of its part of the time, or of
// the steps if none takes time. `limit_bytes` is drawn as a dashed line.
// Returns "" if there is nothing to draw, or stdout has less than 40 columns.
std::string DrawMemory(const std::vector<MemoryCurve>& curves,
                       std::optional<int64_t> limit_bytes,
                       const Terminal& terminal);

}  // namespace acplan::cli
