#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace acplan::graph {

// A microbatch whose inputs have this length, or an evaluation of one.
struct LengthStep {
  int64_t length = 0;
  bool is_evaluation = false;

  bool operator==(const LengthStep&) const = default;
};

// A length, and how many of the batches have it.
struct LengthCount {
  int64_t length = 0;
  int64_t count = 0;
};

// The way in which batches are drawn from a histogram.
struct LengthDraw {
  int64_t steps = 200;
  uint64_t seed = 0;
};

inline constexpr int64_t kMostLengthSteps = 2'000;
inline constexpr int64_t kLargestLength = int64_t{1} << 40;

// Draws lengths with the probabilities of the histogram, each by itself. The same seed
// gives the same lengths on all machines.
std::vector<LengthStep> DrawLengths(const std::vector<LengthCount>& histogram,
                                    const LengthDraw& draw);

// Reads the order of a run's batches, one a line: "512", or "eval 512" for an evaluation.
// Or draws from a histogram, a length a line with its count: "512 120". Blank lines and
// lines that begin with '#' do not count.
//
// Throws InputError, naming file and line, for anything else, for both kinds in one file,
// for a length that stands twice in a histogram, for an order without a batch of
// training or with more than kMostLengthSteps lines, and for `draw` with an order.
std::vector<LengthStep> ReadLengths(const std::filesystem::path& path,
                                    const std::optional<LengthDraw>& draw);

// Parses the same from text. Errors name `name` in place of a file.
std::vector<LengthStep> ParseLengths(std::string_view text,
                                     std::string_view name,
                                     const std::optional<LengthDraw>& draw);

}  // namespace acplan::graph
