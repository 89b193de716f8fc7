#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace acplan::cli {

// The content of a page, which determines its script.
enum class PageKind { kStep, kSearch, kLengths };

// Returns a page that needs no other file and asks no network, which its
// Content-Security-Policy forbids: the data, Vega with its licence, and the
// script that shows the data by Vega. Without scripts the page says so.
std::string ReportPage(PageKind kind, std::string_view title,
                       const nlohmann::ordered_json& data);

// Throws InputError, naming -o, for a name of a page that is empty or does not end with
// .html.
void RequirePageName(const std::string& name);

// Returns JSON that may stand inside of a script element, whatever its strings
// hold: it has no '<', '>' and '&', and only ASCII; bytes that are no UTF-8 are
// replaced.
std::string JsonForScript(const nlohmann::ordered_json& data);

}  // namespace acplan::cli
