#pragma once

#include <filesystem>

namespace acplan::cli {

// The data that came with the program: beside it where it is installed, else of
// the source tree that it was built from.
std::filesystem::path DataFolder();

}  // namespace acplan::cli
