#include "graph/base/byte_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<Unit, 11> kUnits = {{{"B", 1},
                                          {"kB", 1'000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"TB", 1'000'000'000'000},
                                          {"PB", 1'000'000'000'000'000},
                                          {"KiB", int64_t{1} << 10},
                                          {"MiB", int64_t{1} << 20},
                                          {"GiB", int64_t{1} << 30},
                                          {"TiB", int64_t{1} << 40},
                                          {"PiB", int64_t{1} << 50}}};
constexpr int64_t kMost = int64_t{1} << 62;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return lower;
}

std::string UnitHint(std::string_view unit) {
  std::vector<std::string_view> near;
  for (const Unit& known_unit : kUnits)
    if (Lower(known_unit.name) == Lower(unit)) near.push_back(known_unit.name);
  if (near.empty())
    for (const Unit& known_unit : kUnits)
      if (Lower(known_unit.name.substr(0, 1)) == Lower(unit.substr(0, 1)))
        near.push_back(known_unit.name);
  if (near.empty())
    return "known are B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB and PiB";
  return fmt::format("did you mean {}?", fmt::join(near, " or "));
}

bool IsSpace(char c) { return c == ' ' || c == '\t'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

// Text split into its leading decimal digits and the rest.
struct Digits {
  std::string_view digits, rest;
};
Digits SplitDigits(std::string_view text) {
  size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  return {text.substr(0, end), text.substr(end)};
}

// Returns the number in units as bytes; nothing if it is more than kMost.
std::optional<int64_t> Scale(std::string_view whole, std::string_view fraction,
                             int64_t unit) {
  int64_t number = 0;
  for (char c : whole) {
    const int digit = c - '0';
    if (number > (kMost / unit - digit) / 10) return std::nullopt;
    number = number * 10 + digit;
  }
  // Goes from the last digit to the first: floor((n + x) / 10) = floor((n + floor(x)) / 10)
  // for whole n, so rounding down at each step is rounding down once.
  int64_t part = 0;
  for (size_t i = fraction.size(); i-- > 0;)
    part = ((fraction[i] - '0') * unit + part) / 10;
  if (number * unit > kMost - part) return std::nullopt;
  return number * unit + part;
}

// The words for sizes, or for rates, in complaints.
struct QuantityWords {
  std::string_view expected;
  std::string_view name;
  std::string_view suffix;  // of all units
};
constexpr QuantityWords kSizeWords = {
    .expected = "a size such as 1.6GiB, 1600MB or a whole number of bytes",
    .name = "a size",
    .suffix = ""};
constexpr QuantityWords kRateWords = {
    .expected = "a rate such as 25GB/s", .name = "a rate", .suffix = "/s"};

// Parses `text` without the suffix. Errors show `whole_text`.
int64_t ParseQuantity(std::string_view text, std::string_view whole_text,
                      std::string_view what, const QuantityWords& words) {
  auto fail = [&](std::string_view reason) -> InputError {
    return InputError(fmt::format("{}: expected {}, found {}: {}",
                                  OneLine(what, 200), words.expected,
                                  Quoted(whole_text), reason));
  };
  const std::string_view trimmed = Trim(text);
  if (trimmed.empty()) throw fail("no number");
  if (trimmed.front() == '-') {
    throw fail(fmt::format("{} is positive", words.name));
  }

  auto [whole, rest] = SplitDigits(trimmed);
  std::string_view fraction;
  bool has_point = !rest.empty() && rest.front() == '.';
  if (has_point) {
    Digits split = SplitDigits(rest.substr(1));
    fraction = split.digits;
    rest = split.rest;
    if (fraction.empty()) throw fail("no digit after the point");
  }
  if (whole.empty() && fraction.empty()) throw fail("no number");
  const bool has_exponent =
      rest.size() > 1 && (rest[0] == 'e' || rest[0] == 'E') &&
      (std::isdigit(static_cast<unsigned char>(rest[1])) || rest[1] == '+' ||
       rest[1] == '-');
  if (has_exponent) throw fail("exponents are not supported");

  rest = Trim(rest);
  if (rest.empty() && has_point) throw fail("a fraction needs a unit");
  const auto unit =
      std::ranges::find(kUnits, rest.empty() ? "B" : rest, &Unit::name);
  if (unit == kUnits.end())
    throw fail(
        fmt::format("unknown unit {}; {}", Quoted(rest, 20), UnitHint(rest)));

  const std::optional<int64_t> bytes = Scale(whole, fraction, unit->bytes);
  if (!bytes) throw fail(fmt::format("more than 4 EiB{}", words.suffix));
  if (*bytes == 0) {
    throw fail(fmt::format("less than one byte{}",
                           words.suffix.empty() ? "" : " a second"));
  }
  return *bytes;
}

}  // namespace

int64_t ParseByteSize(std::string_view text, std::string_view what) {
  return ParseQuantity(text, text, what, kSizeWords);
}

int64_t ParseByteRate(std::string_view text, std::string_view what) {
  const std::string_view trimmed = Trim(text);
  if (!trimmed.ends_with(kRateWords.suffix)) {
    throw InputError(fmt::format("{}: expected {}, found {}",
                                 OneLine(what, 200), kRateWords.expected,
                                 Quoted(text)));
  }
  return ParseQuantity(
      trimmed.substr(0, trimmed.size() - kRateWords.suffix.size()), text, what,
      kRateWords);
}

std::string DisplayBytes(int64_t bytes, std::string_view unit) {
  const double number = static_cast<double>(bytes);
  for (const Unit& known_unit : kUnits)
    if (known_unit.name == unit &&
        (unit == "KiB" || unit == "MiB" || unit == "GiB"))
      return fmt::format("{:.2f} {}",
                         number / static_cast<double>(known_unit.bytes), unit);
  return fmt::format("{:.2f} bytes", number);
}

std::string FormatManyBytes(double bytes) {
  const double magnitude = std::abs(bytes);
  std::string_view name = "B";
  double scale = 1;
  for (const Unit& unit : kUnits) {
    const double unit_bytes = static_cast<double>(unit.bytes);
    if (unit.name.ends_with("iB") && magnitude >= unit_bytes) {
      name = unit.name;
      scale = unit_bytes;
    }
  }
  if (scale == 1) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.2f} {}", bytes / scale, name);
}

std::string FormatBytes(int64_t bytes) {
  return FormatManyBytes(static_cast<double>(bytes));
}

}  // namespace acplan::graph
