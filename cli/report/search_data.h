#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace acplan::cli {

// Parses the text of a file that train show or train search wrote, as data of a page: one or
// several strategies, with times by part and the memory of stages by kind.
// Returns nothing if the file is of another format. Throws InputError if it is
// of this format but not as those commands write it.
std::optional<nlohmann::ordered_json> ParseTraining(
    std::string_view text, const std::filesystem::path& path);

}  // namespace acplan::cli
