#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/planning/allocator_flags.h"
#include "cli/terminal/terminal.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::cli {

// A run of a step on PyTorch's allocator as printed.
struct RunTexts {
  std::string text;
  nlohmann::ordered_json json;
  std::string timeline;  // CSV, a row an event, if asked for
};

// Runs the step's iterations on the allocator and describes what they take.
RunTexts SimulateRun(const graph::Trace& trace, const graph::LivedStep& step,
                     const AllocatorQuestion& question, bool wants_timeline,
                     const Terminal& terminal);

}  // namespace acplan::cli
