#pragma once

#include <string>
#include <string_view>

namespace acplan::graph {

// `text` as one printable line for a message: control characters, what changes
// the direction of text and what is not UTF-8 escaped, and cut after about `most` bytes with "...".
std::string OneLine(std::string_view text, size_t most = 60);

// As above, in double quotes, with quotes and backslashes inside escaped.
std::string Quoted(std::string_view text, size_t most = 60);

// Returns whether `text`, which is UTF-8, has a character that a terminal obeys
// and does not show: controls, separators of lines, what changes the direction.
bool HasControls(std::string_view text);

}  // namespace acplan::graph
