// All bytes are a size between 1 and 2^62, or an InputError of one line.

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const int64_t bytes = acplan::graph::ParseByteSize(text, "--budget");
    Require(bytes >= 1 && bytes <= int64_t{1} << 62, "a size in range");
    Require(acplan::graph::ParseByteSize(std::to_string(bytes), "--budget") ==
                bytes,
            "the same size as plain bytes");
    Require(!acplan::graph::FormatBytes(bytes).empty(), "a size for people");
  } catch (const acplan::InputError& error) {
    CheckMessage(error, "--budget: ");
  }
  return 0;
}
