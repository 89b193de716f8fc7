#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace acplan::graph {

// Passes each line of a file to `use`, without its "\n" or "\r\n". Files may be larger than
// memory, and are inflated if they start with gzip's magic number. Throws InputError as
// ReadFile does, except that a file's size has no limit; no line may have more than 2^26
// bytes.
void ForEachLine(const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& use);

}  // namespace acplan::graph
