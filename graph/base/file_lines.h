#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace acplan::graph {

// Calls `use` with each line of a file, without its "\n" or "\r\n", for files
// that are larger than memory; where it starts with gzip's magic number,
// inflated. Throws InputError as ReadFile does, but for a file's size: no line
// may have more than 2^26 bytes.
void ForEachLine(const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& use);

}  // namespace acplan::graph
