#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace acplan::cli {

// What a page shows, and with which script.
enum class PageKind { kStep, kSearch };

// A page that needs no other file and asks no network, which its
// Content-Security-Policy forbids: the data, Vega with its licence, and the script
// that shows the one by the other. Without scripts it says so.
std::string ReportPage(PageKind kind, std::string_view title,
                       const nlohmann::ordered_json& data);

// JSON that may stand inside of a script element, whatever its strings hold: it
// has no '<', '>' and '&', and ASCII alone; what is not UTF-8 is replaced.
std::string JsonForScript(const nlohmann::ordered_json& data);

}  // namespace acplan::cli
