#pragma once

#include <filesystem>
#include <string>

namespace acplan::cli {

// The data that came with the program: beside it where it is installed, else of
// the source tree that it was built from.
std::filesystem::path DataFolder();

// The value of --systems: what was given, else the file of that data.
std::filesystem::path SystemsFile(const std::string& given);

}  // namespace acplan::cli
