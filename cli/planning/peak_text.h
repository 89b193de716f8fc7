#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cli/terminal/terminal.h"
#include "graph/trace/peak_account.h"
#include "graph/trace/trace.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::cli {

// Returns the place of a peak: "optimizer, aten._foreach_sqrt.default",
// "backward, aten.mm.default in transformer.h.2"; "" for a trace without
// operators.
std::string PlaceText(const graph::Trace& trace,
                      const graph::PeakAccount& account);

// Returns the line "at model.py:123" of an operator, at most 100 columns wide;
// "" for one without a line.
std::string SourceText(const graph::Trace& trace, graph::OperatorId op);

// Returns kinds, modules and operators as JSON (docs/file_formats.md). The
// `top` largest storages are listed one by one.
nlohmann::ordered_json ToJson(const graph::Trace& trace,
                              const graph::PeakAccount& account, size_t top);

// Returns tables of the modules that have most, and of the operators and the
// lines of Python that made most: `top` rows each and a row for the rest.
// Modules whose names differ in numbers alone share a row. At most 100 columns
// wide.
std::string ContentsText(const graph::Trace& trace,
                         const graph::PeakAccount& account, size_t top,
                         const Terminal& terminal);

// Returns the lines on why no plan is within a budget: the contents of the
// least peak, the line of Python that runs there, and the part that no plan can
// discard. Returns "" if the question is not about a trace, and if Ctrl-C ends
// the search. Searches for the least budget within the remaining `limits`.
std::string InfeasibleText(const problems::Families& families,
                           const solver::SearchLimits& limits);

}  // namespace acplan::cli
