#include "graph/base/json_text.h"

#include <nlohmann/json.hpp>

namespace acplan::graph {
namespace {

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

}  // namespace

std::string CompactText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, kReplace);
}

std::string CompactText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, kReplace);
}

std::string IndentedText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, kReplace) + "\n";
}

nlohmann::ordered_json ParseOrderedJson(std::string_view text) {
  return nlohmann::ordered_json::parse(text);
}

}  // namespace acplan::graph
