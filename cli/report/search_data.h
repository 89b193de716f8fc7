#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

namespace acplan::cli {

// What train show or train search wrote, as report pages show it: the
// strategies, one or several, with times by part and the memory of stages by
// kind. Nothing where the file is of another format. Throws InputError where it
// is of this one and not what those commands write.
std::optional<nlohmann::ordered_json> ReadTraining(
    const std::filesystem::path& path);

}  // namespace acplan::cli
