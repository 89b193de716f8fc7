#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "problems/plan/plan.h"

namespace acplan::cli {

// The points of a frontier, as report pages draw it: budget, peak, recomputation,
// overhead and status of each plan.
nlohmann::ordered_json FrontierJson(const std::vector<problems::Plan>& plans,
                                    int64_t unplanned_peak_bytes);

// The same of a file that acplan frontier wrote. Throws InputError where it is
// none, or of another model than `model`.
nlohmann::ordered_json ReadFrontier(const std::filesystem::path& path,
                                    std::string_view model);

}  // namespace acplan::cli
