#include "problems/trainers/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"

namespace acplan::problems {

using nlohmann::json;

namespace {

ParsedConfig Parse(std::string_view text, const std::string& name,
                   ConfigFormat format, std::string_view function) {
  const bool is_code =
      format == ConfigFormat::kPython || format == ConfigFormat::kFlags;
  if (is_code && text.find('\0') != std::string_view::npos) {
    throw InputError(name + ": expected text, found a byte of value 0");
  }
  if (format == ConfigFormat::kPython) return ParsePython(text, name, function);
  if (!function.empty()) {
    throw InputError(
        fmt::format("{}: expected a Python file to find the function {} in",
                    name, graph::Quoted(function)));
  }
  ParsedConfig parsed;
  switch (format) {
    case ConfigFormat::kYaml:
      parsed.root = ParseYaml(text, name);
      break;
    case ConfigFormat::kToml:
      parsed.root = ParseToml(text, name);
      break;
    case ConfigFormat::kJson:
      parsed.root = graph::ParseJson(text, name);
      break;
    case ConfigFormat::kFlags:
    case ConfigFormat::kPython:
      parsed = ParseFlags(text, name);
      break;
  }
  if (!parsed.root.is_object()) {
    throw InputError(
        fmt::format("{}: expected keys and values, found {}", name,
                    graph::OneLine(graph::CompactText(parsed.root))));
  }
  return parsed;
}

// Returns a scalar as text; nothing for a list or an object that is no call.
std::optional<std::string> ScalarText(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains(kCallKey)) {
    return value.at(kCallKey).get<std::string>();
  }
  if (value.is_structured() || value.is_null()) return std::nullopt;
  return graph::CompactText(value);
}

// Returns the value at a path in another one; null if there is none, or null there.
const json* FindIn(const json& root, std::string_view path) {
  const json* value = &root;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string key(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (!value->is_object() || !value->contains(key)) return nullptr;
    value = &value->at(key);
  }
  return value->is_null() ? nullptr : value;
}

// Returns the parts between commas, without spaces around them.
std::vector<std::string> Split(std::string_view text) {
  const auto is_space = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!part.empty() && is_space(part.front())) part.remove_prefix(1);
    while (!part.empty() && is_space(part.back())) part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

}  // namespace

Config::Config(std::string_view text, std::string name, ConfigFormat format,
               std::string_view function)
    : parsed_(Parse(text, name, format, function)),
      name_(std::move(name)),
      format_(format) {}

const json* Config::Find(std::string_view path) const {
  const size_t dot = std::min(path.find('.'), path.size());
  const std::string key(path.substr(0, dot));
  const auto others = parsed_.other_values.find(key);
  if (others != parsed_.other_values.end()) {
    const std::string_view rest = path.substr(std::min(dot + 1, path.size()));
    // A value without the path cannot be meant by it.
    const bool is_asked =
        FindIn(parsed_.root.at(key), rest) != nullptr ||
        std::ranges::any_of(others->second, [&](const json& other) {
          return FindIn(other, rest) != nullptr;
        });
    if (!is_asked && !rest.empty()) return nullptr;
    Fail(key, "one value in the file, or --function NAME", "different values");
  }
  return FindIn(parsed_.root, path);
}

bool Config::Has(std::string_view path) const { return Find(path) != nullptr; }

bool Config::IsOn(std::string_view path) const {
  const json* value = Find(path);
  if (value == nullptr || *value == json(false)) return false;
  const std::string text = ScalarText(*value).value_or("");
  return text != "false" && text != "None" && text != "none";
}

bool Config::Is(std::string_view path, std::string_view text) const {
  const json* value = Find(path);
  return value != nullptr && value->is_string() &&
         value->get_ref<const std::string&>() == text;
}

std::vector<std::string> Config::Keys(std::string_view path) const {
  std::vector<std::string> keys;
  const json* value = Find(path);
  if (value == nullptr || !value->is_object()) return keys;
  for (const auto& [key, item] : value->items()) {
    if (key != kCallKey) keys.push_back(key);
  }
  return keys;
}

void Config::RequireTable(std::string_view path) const {
  const json* value = Find(path);
  if (value != nullptr && !value->is_object()) Fail(path, "keys and values");
}

bool Config::Mentions(std::string_view word) const {
  return parsed_.words.contains(std::string(word));
}

bool Config::IsTrue(std::string_view path, bool fallback) const {
  const json* value = Find(path);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  const std::string text = ScalarText(*value).value_or("");
  if (text == "true" || text == "True") return true;
  if (text != "false" && text != "False") Fail(path, "true or false");
  return false;
}

int Config::Whole(std::string_view path, int least, int fallback) const {
  const json* value = Find(path);
  if (value == nullptr) return fallback;
  const std::string text = ScalarText(*value).value_or("");
  const bool is_number = !text.empty() && text.size() < 9 &&
                         std::ranges::all_of(text, [](unsigned char c) {
                           return std::isdigit(c) != 0;
                         });
  const int number = is_number ? std::stoi(text) : least - 1;
  if (number < least) Fail(path, fmt::format("a whole number from {}", least));
  return number;
}

std::optional<std::string> Config::Text(std::string_view path) const {
  const json* value = Find(path);
  if (value == nullptr) return std::nullopt;
  std::optional<std::string> text = ScalarText(*value);
  if (!text) Fail(path, "a single value");
  return text;
}

std::optional<std::vector<std::string>> Config::List(
    std::string_view path) const {
  const json* value = Find(path);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    const std::optional<std::string> text = ScalarText(*value);
    if (!text) Fail(path, "a list");
    if (*text == "set") return std::vector<std::string>();
    return Split(*text);
  }
  std::vector<std::string> items;
  for (const json& item : *value) {
    std::optional<std::string> text = ScalarText(item);
    if (!text) Fail(path, "a list of names");
    items.push_back(std::move(*text));
  }
  return items;
}

void Config::Fail(std::string_view path, const std::string& expected) const {
  const json* value = Find(path);
  Fail(path, expected,
       value == nullptr ? "nothing"
                        : graph::OneLine(graph::CompactText(*value)));
}

void Config::Fail(std::string_view path, const std::string& expected,
                  const std::string& value) const {
  throw InputError(fmt::format("{}: {}: expected {}, found {}", name_, path,
                               expected, value));
}

}  // namespace acplan::problems
