#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace acplan::cli {

// Reads a file that train show or train search wrote, as data of a page: one or
// several strategies, with times by part and the memory of stages by kind.
// Returns nothing if the file is of another format. Throws InputError if it is
// of this format but not as those commands write it.
std::optional<nlohmann::ordered_json> ReadTraining(
    const std::filesystem::path& path);

}  // namespace acplan::cli
