// Changes an input before libFuzzer feeds it again: half of the time as
// libFuzzer does by itself, else by changes of the JSON document (mutations.h),
// and sometimes by a newly made input.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/mutations.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

std::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Returns the size of the text, or 0 if there is no room for it.
size_t CopyTo(const std::string& text, uint8_t* to, size_t max_size) {
  if (text.empty() || text.size() > max_size) return 0;
  std::memcpy(to, text.data(), text.size());
  return text.size();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  std::mt19937_64 random(seed);
  size_t new_size = 0;
  if (random() % 64 == 0) {
    new_size =
        CopyTo(ValidInput(static_cast<unsigned>(random())), data, max_size);
  } else if (random() % 2 == 0) {
    new_size = CopyTo(MutateJson(AsText(data, size), random), data, max_size);
  }
  return new_size > 0 ? new_size : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size,
                                            const uint8_t* other,
                                            size_t other_size, uint8_t* to,
                                            size_t max_size, unsigned seed) {
  std::mt19937_64 random(seed);
  const std::string crossed =
      CrossJson(AsText(one, one_size), AsText(other, other_size), random);
  if (const size_t new_size = CopyTo(crossed, to, max_size)) return new_size;
  // The beginning of one and the end of the other.
  std::string text(AsText(one, random() % (one_size + 1)));
  text += AsText(other, other_size).substr(random() % (other_size + 1));
  text.resize(std::min(text.size(), max_size));
  return CopyTo(text, to, max_size);
}
