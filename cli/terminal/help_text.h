#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acplan::cli {

// As wide as every terminal is.
inline constexpr size_t kHelpColumns = 80;

// The text of --help with no line of more than 80 columns, as far as it has
// spaces: what describes a flag or a command goes on below where it begins, all
// else with two spaces more; an example is broken with a backslash, so that a
// shell reads it as it was.
std::string WithinHelpColumns(std::string_view help);

}  // namespace acplan::cli
