// Whatever the bytes: a size between 1 and 2^62, or an InputError of one line.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "graph/byte_size.h"
#include "graph/input_error.h"

namespace {

void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::cerr << "broken: " << what << '\n';
  std::abort();
}

}  // namespace

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
    const std::string_view message = error.what();
    Require(message.starts_with("--budget: "), "a message that names its flag");
    Require(message.find('\n') == std::string_view::npos,
            "a message of one line");
    Require(message.size() < 500, "a short message");
  }
  return 0;
}
