#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "problems/plan/plan.h"

namespace acplan::cli {

// Returns the points of a frontier, in the form that report pages draw: budget,
// peak, recomputation, overhead and status of each plan.
nlohmann::ordered_json FrontierJson(const std::vector<problems::Plan>& plans,
                                    int64_t unplanned_peak_bytes);

// Reads the same from a file that acplan frontier wrote. Throws InputError if
// the file is no such file, or of another model than `model`.
nlohmann::ordered_json ReadFrontier(const std::filesystem::path& path,
                                    std::string_view model);

}  // namespace acplan::cli
