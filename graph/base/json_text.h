#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace acplan::graph {

// JSON as text, in which bytes that are not UTF-8 are replaced. JSON is written here and
// nowhere else, so that the library's templates for that are compiled once.

// Returns JSON on one line, without spaces.
std::string CompactText(const nlohmann::json& json);
std::string CompactText(const nlohmann::ordered_json& json);

// Returns JSON on many lines, indented by two spaces, with a newline at the end.
std::string IndentedText(const nlohmann::ordered_json& json);

// Parses JSON that acplan wrote, with the keys in their order. ParseJson is for all other
// files.
nlohmann::ordered_json ParseOrderedJson(std::string_view text);

}  // namespace acplan::graph
