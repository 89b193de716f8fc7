#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace acplan::cli {

// Parses the text of a file that `llm-optimal-execution` wrote, as data of a page:
// strategies of Calculon's cost model by rank, in the form that search_data.h
// has for training runs. Returns nothing if the file is of another format.
// Throws InputError, with file and path, for a file whose values for the page
// are missing or of another kind.
std::optional<nlohmann::ordered_json> ParseExecutions(
    std::string_view text, const std::filesystem::path& path);

}  // namespace acplan::cli
