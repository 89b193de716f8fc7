#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acplan::cli {

// The width that every terminal has.
inline constexpr size_t kHelpColumns = 80;

// Returns the text of --help without lines of more than 80 columns, if there
// are spaces to break them at. The description of a flag or a command continues
// below its beginning, other text is indented by two more spaces; an example is
// broken with a backslash, so that a shell reads it as before.
std::string WithinHelpColumns(std::string_view help);

}  // namespace acplan::cli
