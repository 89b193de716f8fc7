#pragma once

#include <string>

#include "cli/llm/llm_text.h"

namespace acplan::cli {

// What Calculon logs at level DEBUG: each layer, the block, the batch.
std::string DebugText(const LlmResult& result,
                      const costmodel::Statistics& statistics);

}  // namespace acplan::cli
