#include "cli/pictures/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

constexpr std::string_view kStyle = R"(
body { font-family: sans-serif; margin: 1.5em; color: #222; background: #fff; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; margin-top: 1.5em; }
th, td { border: 1px solid #ccc; padding: .25em .7em; text-align: right; }
)";

// Rises from 0 at `begin` to 1 at `end`.
double Ramp(double share, double begin, double end) {
  return std::clamp((share - begin) / (end - begin), 0.0, 1.0);
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : graph::OneLine(text, 4000)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string HexColor(double red, double green, double blue) {
  const auto byte = [](double share) {
    return static_cast<int>(std::lround(255 * std::clamp(share, 0.0, 1.0)));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", byte(red), byte(green), byte(blue));
}

std::string HotColor(double share) {
  constexpr double kRedEnd = 0.365079;
  constexpr double kGreenEnd = 0.746032;
  return HexColor(0.0416 + (1 - 0.0416) * Ramp(share, 0, kRedEnd),
                  Ramp(share, kRedEnd, kGreenEnd), Ramp(share, kGreenEnd, 1));
}

std::string RainbowColor(double share) {
  return HexColor(std::abs(2 * share - 0.5), std::sin(std::numbers::pi * share),
                  std::cos(std::numbers::pi / 2 * share));
}

std::string HtmlPage(std::string_view title, std::string_view body,
                     std::string_view script) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" "
      "xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n{}{}</body>\n</html>\n",
      Escaped(title), kStyle, body,
      script.empty()
          ? ""
          : fmt::format("<script>//<![CDATA[\n{}//]]></script>\n", script));
}

}  // namespace acplan::cli
