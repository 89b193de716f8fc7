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
caption { text-align: left; padding-bottom: .4em; }
th, td { border: 1px solid #ccc; padding: .25em .7em; text-align: right; }
)";

// Rises from 0 at `begin` to 1 at `end`.
double Ramp(double share, double begin, double end) {
  return std::clamp((share - begin) / (end - begin), 0.0, 1.0);
}

// Returns the part of a colour's luminance that a pair of hexadecimal digits has.
double LinearPart(std::string_view digits) {
  const double share = std::stoi(std::string(digits), nullptr, 16) / 255.0;
  return share <= 0.04045 ? share / 12.92
                          : std::pow((share + 0.055) / 1.055, 2.4);
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

std::string SvgText(double x, double y, std::string_view anchor,
                    std::string_view text, std::string_view more) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
      anchor, more, Escaped(text));
}

std::string ColorBar(const ColorScale& scale, double bar_left, double top,
                     double height) {
  constexpr int kSteps = 64;
  constexpr int kTicks = 4;
  constexpr int kWidth = 18;
  std::string bar;
  for (int step = 0; step < kSteps; ++step) {
    bar += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" "
        "fill=\"{}\"/>\n",
        bar_left, top + height * (kSteps - 1 - step) / kSteps, kWidth,
        height / kSteps + 0.3, scale.color((step + 0.5) / kSteps));
  }
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double share = static_cast<double>(tick) / kTicks;
    bar += SvgText(
        bar_left + kWidth + 6, top + height * (1 - share) + 4.5, "start",
        fmt::format("{:.4g}",
                    scale.least + share * (scale.most - scale.least)));
  }
  return bar + SvgText(bar_left, top - 16, "start", "samples/s");
}

std::string_view TextColorOn(std::string_view color) {
  const double luminance = 0.2126 * LinearPart(color.substr(1, 2)) +
                           0.7152 * LinearPart(color.substr(3, 2)) +
                           0.0722 * LinearPart(color.substr(5, 2));
  // Contrasts with white and black are equal at this luminance (WCAG).
  return luminance < 0.1791 ? "white" : "black";
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
