#pragma once

#include <filesystem>
#include <string>

namespace acplan::costmodel {

// The executions of a search, {"0": {"execution": {...}, "stats": {...}}, ...},
// as CSV: an empty heading and then every key of entry "0", category by
// category, each followed by a comma, one more comma; a line an entry, in the
// order of the file, its rank first. Values as Python's str writes them and
// without quoting, so that `layers`, a list, spreads over several fields.
// Throws InputError, also where an entry lacks one of the keys.
std::string ResultCsv(const std::filesystem::path& results);

}  // namespace acplan::costmodel
