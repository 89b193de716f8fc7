#include "graph/base/number_text.h"

#include <fmt/format.h>

#include <array>

namespace acplan::graph {

std::string FloatText(double value) {
  std::string text = fmt::to_string(value);
  if (text.find_first_of(".eni") == std::string::npos) text += ".0";
  return text;
}

std::string HumanText(double value, int precision, std::string_view separator) {
  constexpr std::array<std::string_view, 7> kSuffixes{"",  "k", "M", "G",
                                                      "T", "P", "E"};
  auto suffix = kSuffixes.begin();
  while (value >= 1000 && suffix + 1 != kSuffixes.end()) {
    value /= 1000;
    ++suffix;
  }
  return fmt::format("{:.{}f}{}{}", value, precision, separator, *suffix);
}

}  // namespace acplan::graph
