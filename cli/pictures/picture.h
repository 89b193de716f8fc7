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

// Returns a page that needs no other file. `body` and `script` are not escaped;
// the page is also well-formed XML.
std::string HtmlPage(std::string_view title, std::string_view body,
                     std::string_view script);

}  // namespace acplan::cli
