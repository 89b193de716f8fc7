#pragma once

#include <filesystem>
#include <string>

namespace acplan::costmodel {

// Returns the executions of a search, {"0": {"execution": {...}, "stats": {...}}, ...}, as
// CSV. The heading is an empty cell and then every key of entry "0", category by category,
// each followed by a comma, and one more comma. Then there is a line for each entry, in the
// order of the file, with its rank first. Values are as Python's str writes them and
// without quotes, so that `layers`, a list, spreads over several fields. Throws InputError,
// also if an entry lacks one of the keys.
std::string ResultCsv(const std::filesystem::path& results);

}  // namespace acplan::costmodel
