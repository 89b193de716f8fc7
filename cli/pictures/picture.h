#pragma once

#include <string>
#include <string_view>

namespace acplan::cli {

// Returns text inside of SVG or HTML, with control characters and bytes that
// are no UTF-8 escaped.
std::string Escaped(std::string_view text);

// Returns "#rrggbb" of shares, which are clamped to 0 to 1.
std::string HexColor(double red, double green, double blue);

// Returns the colour of matplotlib's map `hot` at a share from 0 to 1;
// RainbowColor does the same for `rainbow`.
std::string HotColor(double share);
std::string RainbowColor(double share);

// The colours of a picture, from the least rate to the most.
struct ColorScale {
  double least = 0;
  double most = 0;
  std::string (*color)(double share) = HotColor;
};

// Returns a text of SVG that begins, ends or has its middle at `x`; `more` are further
// attributes.
std::string SvgText(double x, double y, std::string_view anchor,
                    std::string_view text, std::string_view more = "");

// Returns the legend of a scale: a bar of its colours with rates beside it, under the
// unit.
std::string ColorBar(const ColorScale& scale, double bar_left, double top,
                     double height);

// Returns "black" or "white", whichever is easier to read on a colour "#rrggbb".
std::string_view TextColorOn(std::string_view color);

// Returns a page that needs no other file. `body` and `script` are not escaped;
// the page is also well-formed XML.
std::string HtmlPage(std::string_view title, std::string_view body,
                     std::string_view script);

}  // namespace acplan::cli
