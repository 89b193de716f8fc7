#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "problems/trainers/config_formats.h"

namespace acplan::problems {

using nlohmann::json;

namespace {

constexpr int kMostDepth = 200;

template <size_t count>
bool IsOneOf(std::string_view text,
             const std::array<std::string_view, count>& words) {
  return std::ranges::find(words, text) != words.end();
}

// Returns the value of a text without quotes.
json Plain(const std::string& text) {
  constexpr std::array<std::string_view, 9> kTrue = {
      "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
  constexpr std::array<std::string_view, 9> kFalse = {
      "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};
  constexpr std::array<std::string_view, 5> kNull = {"", "~", "null", "Null",
                                                     "NULL"};
  if (IsOneOf(text, kNull)) return nullptr;
  if (IsOneOf(text, kTrue)) return true;
  if (IsOneOf(text, kFalse)) return false;
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, whole);
  if (result.ec == std::errc() && result.ptr == end) return whole;
  return text;
}

class Reader {
 public:
  json Read(const YAML::Node& node, int depth = 0) {
    if (++count_ > kMostConfigValues || depth > kMostDepth) {
      throw InputError(fmt::format("expected at most {} values, {} levels deep",
                                   kMostConfigValues, kMostDepth));
    }
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        // The tag "!" is that of a text in quotes.
        return node.Tag() == "!" ? json(node.Scalar()) : Plain(node.Scalar());
      case YAML::NodeType::Sequence: {
        json list = json::array();
        for (const YAML::Node& item : node) {
          list.push_back(Read(item, depth + 1));
        }
        return list;
      }
      case YAML::NodeType::Map:
        return Table(node, depth);
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    return nullptr;
  }

 private:
  json Table(const YAML::Node& node, int depth) {
    json table = json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        throw InputError(fmt::format("line {}: expected a key that is a text",
                                     entry.first.Mark().line + 1));
      }
      const std::string& key = entry.first.Scalar();
      json value = Read(entry.second, depth + 1);
      if (key == "<<" && value.is_object()) {
        // A merge: the table's own keys hold.
        for (auto& [name, other] : value.items()) table.emplace(name, other);
      } else {
        table[key] = std::move(value);
      }
    }
    return table;
  }

  int64_t count_ = 0;
};

}  // namespace

json ParseYaml(std::string_view text, const std::string& name) {
  try {
    const json root = Reader().Read(YAML::Load(std::string(text)));
    return root.is_null() ? json::object() : root;
  } catch (const YAML::Exception& error) {
    throw InputError(fmt::format("{}: line {}: no YAML: {}", name,
                                 error.mark.line + 1,
                                 graph::OneLine(error.msg, 200)));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace acplan::problems
