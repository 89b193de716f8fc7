// toml++ 3.3 asserts what some texts that are no TOML break, and refuses them after that.
#define TOML_ASSERT(condition) static_cast<void>(0)

#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "problems/trainers/config_formats.h"

namespace acplan::problems {

using nlohmann::json;

namespace {

json ValueOf(const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    json object = json::object();
    for (const auto& [key, value] : *table) {
      object[std::string(key.str())] = ValueOf(value);
    }
    return object;
  }
  if (const toml::array* array = node.as_array()) {
    json list = json::array();
    for (const toml::node& item : *array) list.push_back(ValueOf(item));
    return list;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return "a date or time";
}

}  // namespace

json ParseToml(std::string_view text, const std::string& name) {
  try {
    return ValueOf(toml::parse(text));
  } catch (const toml::parse_error& error) {
    throw InputError(fmt::format("{}: line {}: no TOML: {}", name,
                                 error.source().begin.line,
                                 graph::OneLine(error.description(), 200)));
  }
}

}  // namespace acplan::problems
