#pragma once

#include <string>
#include <string_view>

namespace acplan::graph {

// Returns `text` as one printable line for a message: control characters, characters that
// change the direction of text and bytes that are not UTF-8 are escaped, and it is cut
// after about `most` bytes with "...".
std::string OneLine(std::string_view text, size_t most = 60);

// Returns the same in double quotes, with quotes and backslashes inside escaped.
std::string Quoted(std::string_view text, size_t most = 60);

// Returns whether `text`, which is UTF-8, has a character that a terminal obeys and does
// not show: controls, line separators, characters that change the direction of text.
bool HasControls(std::string_view text);

}  // namespace acplan::graph
