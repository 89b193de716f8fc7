#pragma once

#include <string>

#include "cli/calculon/llm_text.h"

namespace acplan::cli {

// Returns the text that Calculon logs at level DEBUG: each layer, the block,
// the batch.
std::string DebugText(const LlmResult& result,
                      const costmodel::Statistics& statistics);

}  // namespace acplan::cli
