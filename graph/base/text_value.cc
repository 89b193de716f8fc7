#include "graph/base/text_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "graph/base/json_fields.h"
#include "graph/base/number_text.h"

namespace acplan::graph {

namespace {

using Kind = TextValue::Kind;
using nlohmann::json;

// Merges members with the same key: the first place and the last value stay.
void KeepLastValues(std::vector<TextMember>& members) {
  std::unordered_map<std::string_view, TextValue*> places;
  std::vector<bool> is_repeated(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    auto& [key, value] = members[i];
    const auto [place, is_new] = places.try_emplace(key, &value);
    if (!is_new) *place->second = std::move(value);
    is_repeated[i] = !is_new;
  }
  if (places.size() == members.size()) return;
  std::vector<TextMember> kept_members;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!is_repeated[i]) kept_members.push_back(std::move(members[i]));
  }
  members = std::move(kept_members);
}

class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(TextValue& root) : path_{&root} {}

  bool null() override { return Add(Kind::kNull, "None"); }
  bool boolean(bool value) override {
    return Add(Kind::kBool, value ? "True" : "False");
  }
  bool number_integer(json::number_integer_t value) override {
    return Add(Kind::kNumber, fmt::to_string(value));
  }
  bool number_unsigned(json::number_unsigned_t value) override {
    return Add(Kind::kNumber, fmt::to_string(value));
  }
  bool number_float(double value, const std::string& token) override {
    const bool is_whole = token.find_first_of(".eE") == std::string::npos;
    return Add(Kind::kNumber, is_whole ? token : FloatText(value));
  }
  bool string(std::string& value) override {
    return Add(Kind::kString, std::move(value));
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Kind::kObject); }
  bool key(std::string& key) override {
    TextValue& object = *path_.back();
    object.members.push_back({std::move(key), {}});
    path_.push_back(&object.members.back().value);
    return true;
  }
  bool end_object() override {
    KeepLastValues(path_.back()->members);
    return Close();
  }
  bool start_array(size_t) override { return Open(Kind::kArray); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  // Returns the place of the next value: a member that key() has made, a new element, or
  // the root.
  TextValue& Place() {
    TextValue& parent = *path_.back();
    if (parent.kind == Kind::kArray) {
      parent.elements.emplace_back();
      path_.push_back(&parent.elements.back());
    }
    return *path_.back();
  }
  bool Open(Kind kind) {
    Place().kind = kind;
    return true;
  }
  bool Close() {
    path_.pop_back();
    return true;
  }
  bool Add(Kind kind, std::string text) {
    TextValue& place = Place();
    place.kind = kind;
    place.text = std::move(text);
    return Close();
  }

  std::vector<TextValue*> path_;
};

std::string Quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      quoted += fmt::format("\\x{:02x}", code);
    } else {
      if (c == '\\' || c == quote) quoted += '\\';
      quoted += c;
    }
  }
  return quoted + quote;
}

std::string Repr(const TextValue& value) {
  std::string items;
  const auto add = [&](const std::string& item) {
    items += (items.empty() ? "" : ", ") + item;
  };
  switch (value.kind) {
    case Kind::kString:
      return Quoted(value.text);
    case Kind::kArray:
      for (const TextValue& element : value.elements) add(Repr(element));
      return "[" + items + "]";
    case Kind::kObject:
      for (const auto& [key, member] : value.members)
        add(Quoted(key) + ": " + Repr(member));
      return "{" + items + "}";
    default:
      return value.text;
  }
}

}  // namespace

const TextValue* TextValue::Find(std::string_view key) const {
  const auto member = std::ranges::find(members, key, &TextMember::key);
  return member == members.end() ? nullptr : &member->value;
}

TextValue ParseTextValue(std::string_view json_text, std::string_view file) {
  ParseJson(json_text, file);
  TextValue root;
  Builder builder(root);
  json::sax_parse(json_text, &builder);
  return root;
}

std::string PythonText(const TextValue& value) {
  return value.kind == Kind::kString ? value.text : Repr(value);
}

}  // namespace acplan::graph
