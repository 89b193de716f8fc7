#pragma once

#include <string>
#include <vector>

namespace acplan::cli {

// Throws InputError if a name ends in neither `.json` nor `.json.gz`.
void RequireJsonName(const std::string& path);

// Throws InputError if `output` ends in none of the extensions.
void RequireExtension(const std::string& output,
                      const std::vector<std::string>& extensions);

// Returns "gpt3-13B" for "data/models/gpt3-13B.json.gz".
std::string FileStem(const std::string& path);

}  // namespace acplan::cli
