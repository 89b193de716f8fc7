#pragma once

#include <string>
#include <string_view>

namespace acplan::cli {

// Text inside of SVG or HTML, control characters and what is not UTF-8
// escaped.
std::string Escaped(std::string_view text);

// "#rrggbb" of shares from 0 to 1; what is outside is clamped.
std::string HexColor(double red, double green, double blue);

// matplotlib's colour maps `hot` and `rainbow` at a share from 0 to 1.
std::string HotColor(double share);
std::string RainbowColor(double share);

// A page that needs no other file. `body` and `script` are as they are; the
// page is well-formed XML too.
std::string HtmlPage(std::string_view title, std::string_view body,
                     std::string_view script);

}  // namespace acplan::cli
