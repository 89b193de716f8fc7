#pragma once

#include <string>
#include <string_view>

namespace acplan::graph {

// Returns `text` as one printable line for a message: control characters, characters that
// nothing shows and bytes that are not UTF-8 are escaped, and it is cut after about `most`
// bytes with "...".
std::string OneLine(std::string_view text, size_t most = 60);

// Returns the same in double quotes, with quotes and backslashes inside escaped.
std::string Quoted(std::string_view text, size_t most = 60);

// Escapes characters that nothing shows or that a terminal obeys, other than the
// ASCII controls: separators of lines, what changes the direction, joiners, tags.
std::string ShowUnseen(std::string_view text);

// Returns whether `text` has such a character, or an ASCII control.
bool HasControls(std::string_view text);

}  // namespace acplan::graph
