#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

namespace acplan::cli {

// The data of a page of what `llm-optimal-execution` wrote:
// strategies of Calculon's cost model by rank, as search_data.h has those of
// training runs. Nothing where the file is none of these. Throws InputError, with
// file and path, for one that lacks what the page shows or has it otherwise.
std::optional<nlohmann::ordered_json> ReadExecutions(
    const std::filesystem::path& path);

}  // namespace acplan::cli
