// Whatever the bytes: a filter that some execution can be tried with, or an
// InputError of one line.

#include <cstdint>
#include <string_view>

#include "costmodel/search/execution_filter.h"
#include "graph/base/input_error.h"
#include "tests/fuzz/checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace acplan::costmodel;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const KeyFilter filter = ParseKeyFilter(text, "--set");
    Require(filter.key < kExecutionKeys.size(), "a known key");
    Require(!filter.ranges.empty() + !filter.truths.empty() +
                    !filter.names.empty() ==
                1,
            "values of one type");
    for (const KeyFilter::Range& range : filter.ranges) {
      Require(range.low <= range.high, "a range that is not empty");
    }
    Passes({filter}, Execution());
  } catch (const acplan::InputError& error) {
    CheckMessage(error, "--set: ");
  }
  return 0;
}
