#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/execution/execution.h"
#include "costmodel/execution/execution_fields.h"

namespace acplan::costmodel {

// The values that a key of an execution may have.
struct KeyFilter {
  struct Range {
    int64_t low = 0;
    int64_t high = 0;
  };

  size_t key = 0;                       // index in kExecutionKeys
  std::vector<Range> ranges;            // of a whole number
  std::vector<bool> truths;             // of a yes or no
  std::vector<std::string_view> names;  // of a choice

  bool Allows(const ExecutionField& field) const;
};

// "tensor_par=8", "pipeline_par=1..8,16", "tensor_par_overlap=none,ring",
// "optimizer_sharding=true". Throws InputError; `flag` names where it stands.
KeyFilter ParseKeyFilter(std::string_view text, std::string_view flag);

// Returns whether an execution passes all filters.
bool Passes(const std::vector<KeyFilter>& filters, const Execution& execution);

// The filters on some keys.
std::vector<KeyFilter> FiltersOn(const std::vector<KeyFilter>& filters,
                                 const std::vector<std::string_view>& keys);

}  // namespace acplan::costmodel
