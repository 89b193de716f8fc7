#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/planning/question.h"
#include "cli/terminal/terminal.h"
#include "graph/trace/peak_account.h"
#include "graph/trace/trace.h"

namespace acplan::cli {

// "optimizer, aten._foreach_sqrt.default", "backward, aten.mm.default in
// transformer.h.2"; "" of a trace without operators.
std::string PlaceText(const graph::Trace& trace,
                      const graph::PeakAccount& account);

// The line "at model.py:123" of an operator, of at most 100 columns; "" of one
// without.
std::string SourceText(const graph::Trace& trace, graph::OperatorId op);

// Kinds, modules and operators as JSON: docs/file_formats.md. The `top` largest
// storages are listed one by one.
nlohmann::ordered_json ToJson(const graph::Trace& trace,
                              const graph::PeakAccount& account, size_t top);

// The modules that have most, and the operators and the lines of Python that made
// most, `top` rows each and a row for the rest; modules that differ in numbers of their names alone are
// one row. At most 100 columns.
std::string ContentsText(const graph::Trace& trace,
                         const graph::PeakAccount& account, size_t top,
                         const Terminal& terminal);

// The lines on why no plan is within a budget: what the least one consists of,
// the line of Python that runs there, and what of that no plan can discard. "" where the question is not about a
// trace. Searches for the least budget, and throws LimitError as
// RequireMinimum does.
std::string InfeasibleText(const PlanningQuestion& question,
                           const solver::SearchLimits& limits);

}  // namespace acplan::cli
