#include "cli/terminal/human_numbers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace acplan::cli {

namespace {

struct UnitText {
  double step;
  std::string_view suffix;
};

UnitText TextOf(HumanUnit unit) {
  switch (unit) {
    case HumanUnit::kBytes:
      return {1024, "iB"};
    case HumanUnit::kBandwidth:
      return {1000, "B/s"};
    case HumanUnit::kFlops:
      return {1000, "Ops"};
    case HumanUnit::kCount:
      return {1024, ""};
  }
  return {};
}

}  // namespace

std::string HumanBytes(double bytes) {
  return bytes < 1024 ? fmt::format("{:.0f} B", bytes)
                      : HumanNumber(bytes, HumanUnit::kBytes);
}

std::string HumanNumber(double value, HumanUnit unit) {
  constexpr std::array<std::string_view, 7> kPrefixes = {"",  "k", "M", "G",
                                                         "T", "P", "E"};
  const UnitText text = TextOf(unit);
  if (std::isnan(value)) return fmt::format("n/a {}", text.suffix);
  size_t prefix = 0;
  double size = std::abs(value);
  while (size >= text.step && prefix + 1 < kPrefixes.size()) {
    size /= text.step;
    ++prefix;
  }
  return fmt::format("{:.3f} {}{}", std::copysign(size, value),
                     kPrefixes[prefix], text.suffix);
}

std::string HumanSeconds(double seconds) {
  return seconds >= 1 ? fmt::format("{:.3f} s", seconds)
                      : fmt::format("{:.3f} ms", 1e3 * seconds);
}

}  // namespace acplan::cli
