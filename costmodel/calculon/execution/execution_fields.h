#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "costmodel/calculon/execution/execution.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {

using ExecutionField = std::variant<int64_t, bool, std::string_view>;

// Returns the values of kExecutionKeys, as a file has them.
std::array<ExecutionField, kExecutionKeys.size()> FieldsOf(
    const Execution& execution);

}  // namespace acplan::costmodel
