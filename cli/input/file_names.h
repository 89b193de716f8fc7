#pragma once

#include <string>
#include <vector>

namespace acplan::cli {

// Throws InputError where a name ends in neither `.json` nor `.json.gz`.
void RequireJsonName(const std::string& path);

// Throws InputError where `output` ends in none of the extensions.
void RequireExtension(const std::string& output,
                      const std::vector<std::string>& extensions);

// "data/models/gpt3-13B.json.gz" -> "gpt3-13B".
std::string FileStem(const std::string& path);

}  // namespace acplan::cli
