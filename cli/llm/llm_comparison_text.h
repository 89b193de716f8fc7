#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/results/strategy_comparison.h"

namespace acplan::cli {

// Strategies side by side, the first one without ratios. As many as fit into
// `width` columns, at least one, then the others below. Rows in which all have
// nothing are left out, and of the executions what is the same in all.
std::string ComparisonText(std::span<const costmodel::ComparedStrategy> all,
                           size_t width, const Terminal& terminal);

}  // namespace acplan::cli
