#include "graph/run/length_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <string>
#include <utility>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

constexpr std::string_view kExpected =
    "expected a length, eval and a length, or a length and its count";
constexpr std::string_view kBlanks = " \t\r";

std::vector<std::string_view> WordsOf(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

class LengthReader {
 public:
  explicit LengthReader(std::string_view name) : name_(name) {}

  void Add(std::string_view line) {
    ++line_;
    const std::vector<std::string_view> words = WordsOf(line);
    if (words.empty() || words.front().front() == '#') return;
    const bool evaluates = words.front() == "eval";
    if (words.size() > 2 || (evaluates && words.size() == 1)) {
      Refuse(fmt::format("{}, found {}", kExpected, Quoted(line)));
    }
    if (evaluates || words.size() == 1) {
      order_.push_back(
          {.length = NumberIn(words.back()), .is_evaluation = evaluates});
    } else {
      AddCount({.length = NumberIn(words[0]), .count = NumberIn(words[1])});
    }
    if (!order_.empty() && !histogram_.empty()) {
      Refuse("expected batches in their order or a histogram, found both");
    }
    if (std::ssize(order_) > kMostLengthSteps) {
      Refuse(fmt::format("expected at most {} batches", kMostLengthSteps));
    }
  }

  std::vector<LengthStep> Order(const std::optional<LengthDraw>& draw) && {
    if (!histogram_.empty()) {
      return DrawLengths(histogram_, draw.value_or(LengthDraw()));
    }
    if (std::ranges::all_of(order_, &LengthStep::is_evaluation)) {
      throw InputError(
          fmt::format("{}: expected at least one batch of training", name_));
    }
    if (draw) {
      throw InputError(fmt::format(
          "{}: expected a histogram to draw from, found batches in their order",
          name_));
    }
    return std::move(order_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& complaint) const {
    throw InputError(fmt::format("{}: line {}: {}", name_, line_, complaint));
  }

  int64_t NumberIn(std::string_view word) const {
    int64_t number = 0;
    const auto [end, error] =
        std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number =
        error == std::errc() && end == word.data() + word.size();
    if (!is_number || number < 1 || number > kLargestLength) {
      Refuse(fmt::format("{}, found {}", kExpected, Quoted(word)));
    }
    return number;
  }

  void AddCount(const LengthCount& entry) {
    if (std::ranges::find(histogram_, entry.length, &LengthCount::length) !=
        histogram_.end()) {
      Refuse(fmt::format("length {} stands twice", entry.length));
    }
    histogram_.push_back(entry);
  }

  std::string name_;
  int64_t line_ = 0;
  std::vector<LengthStep> order_;
  std::vector<LengthCount> histogram_;
};

}  // namespace

std::vector<LengthStep> DrawLengths(const std::vector<LengthCount>& histogram,
                                    const LengthDraw& draw) {
  // The distributions of <random> differ from library to library.
  std::mt19937_64 random(draw.seed);
  double all = 0;
  for (const LengthCount& entry : histogram) {
    all += static_cast<double>(entry.count);
  }
  std::vector<LengthStep> order;
  for (int64_t k = 0; k < draw.steps; ++k) {
    double place = static_cast<double>(random() >> 11) * 0x1p-53 * all;
    size_t entry = 0;
    while (entry + 1 < histogram.size() &&
           place >= static_cast<double>(histogram[entry].count)) {
      place -= static_cast<double>(histogram[entry].count);
      ++entry;
    }
    order.push_back({.length = histogram[entry].length});
  }
  return order;
}

std::vector<LengthStep> ReadLengths(const std::filesystem::path& path,
                                    const std::optional<LengthDraw>& draw) {
  return ParseLengths(ReadFile(path, kMostListBytes),
                      OneLine(path.string(), 400), draw);
}

std::vector<LengthStep> ParseLengths(std::string_view text,
                                     std::string_view name,
                                     const std::optional<LengthDraw>& draw) {
  LengthReader reader(name);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    reader.Add(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(reader).Order(draw);
}

}  // namespace acplan::graph
