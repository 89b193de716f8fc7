#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace acplan::graph {

inline constexpr int kMostJsonDepth = 500;
// A value takes up to about a hundred bytes, so this many fit in a few gigabytes. A trace
// of 100,000 operators has a tenth of them.
inline constexpr int64_t kMostJsonValues = 40'000'000;
// The most bytes of a number, a string or blanks between two of the characters ",:[]{}".
inline constexpr size_t kMostJsonToken = size_t{1} << 26;

// A look at JSON text that comes piece by piece and may have no end. It finds the first byte
// at which the text is certainly refused; only the parser finds all others.
class JsonScan {
 public:
  enum class Stop {
    kGoesOn,
    kSyntax,  // a character that stands nowhere in JSON, or one behind the value
    kZero,    // a zero byte, which the parser takes for the end of the text
    kDepth,   // more than kMostJsonDepth
    kValues,  // more than kMostJsonValues
    kToken    // more than kMostJsonToken
  };

  // Reads the next piece. Returns why the text cannot be JSON within the limits.
  Stop Add(std::string_view piece);
  // Returns the number of bytes before the one at which the scan stopped.
  size_t stop_byte() const { return byte_; }

 private:
  Stop AddStructure(char c, size_t byte);

  Stop stop_ = Stop::kGoesOn;
  size_t byte_ = 0;
  size_t token_start_ = 0;
  int64_t values_ = 1;
  int depth_ = 0;
  bool is_in_string_ = false;
  bool is_escaped_ = false;
  bool has_ended_ = false;  // the array or object around all others
};

// Returns the text of a JSON file, as ReadFile does. Reading ends with the first byte at
// which JsonScan stops: ParseJson refuses the text that ends there, so that it also refuses
// a pipe that never ends.
std::string ReadJsonText(const std::filesystem::path& path);

}  // namespace acplan::graph
