#include "graph/base/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/base/number_limits.h"

namespace acplan::graph {
namespace {

using nlohmann::json;

constexpr size_t kMostFileName = 400;

bool IsIdentifier(std::string_view key) {
  return !key.empty() && key.size() <= 60 &&
         key.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
             "0123456789_") == std::string_view::npos;
}

std::string KeyStep(std::string_view key) {
  return IsIdentifier(key) ? fmt::format(".{}", key)
                           : fmt::format("[{}]", Quoted(key));
}

std::string IndexStep(size_t index, const json& element) {
  if (element.is_object())
    if (auto fqn = element.find("fqn");
        fqn != element.end() && fqn->is_string())
      return fmt::format("[{}] ({})", index,
                         OneLine(fqn->get_ref<const std::string&>()));
  return fmt::format("[{}]", index);
}

std::optional<std::string> PathTo(const json& from, const json* target) {
  if (&from == target) return "";
  if (from.is_object()) {
    for (const auto& [key, member] : from.get_ref<const json::object_t&>())
      if (auto rest = PathTo(member, target)) return KeyStep(key) + *rest;
  } else if (from.is_array()) {
    for (size_t i = 0; i < from.size(); ++i)
      if (auto rest = PathTo(from[i], target))
        return IndexStep(i, from[i]) + *rest;
  }
  return std::nullopt;
}

std::string Describe(const json& value) {
  auto entries = [&](std::string_view one, std::string_view many) {
    return value.size() == 1 ? fmt::format("1 {}", one)
                             : fmt::format("{} {}", value.size(), many);
  };
  switch (value.type()) {
    case json::value_t::object:
      return "an object with " + entries("key", "keys");
    case json::value_t::array:
      return "an array of " + entries("entry", "entries");
    case json::value_t::string:
      return Quoted(value.get_ref<const std::string&>());
    default:
      return value.dump();
  }
}

// Returns the value as int64 if it is a whole number that fits.
std::optional<int64_t> WholeNumber(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const double most = static_cast<double>(int64_t{1} << 62);
    if (std::abs(number) > most || number != std::trunc(number))
      return std::nullopt;
    return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

struct Position {
  size_t line, column;
};

Position PositionOf(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const size_t newline = before.rfind('\n');
  const auto lines = std::ranges::count(before, '\n');
  return {static_cast<size_t>(lines) + 1, newline == std::string_view::npos
                                              ? before.size() + 1
                                              : before.size() - newline};
}

InputError NoJson(std::string_view file, std::string_view text, size_t byte,
                  std::string_view reason) {
  const Position at = PositionOf(text, byte);
  return InputError(fmt::format("{}: line {}, column {}: {}",
                                OneLine(file, kMostFileName), at.line,
                                at.column, reason));
}

// Returns "expected ..., found ..." for the parser's "... - unexpected X; expected Y" or
// "... - invalid X; last read: '...'; expected Y".
std::string Condense(std::string_view message, std::string_view text,
                     size_t byte) {
  if (const size_t at = message.find(" - "); at != std::string_view::npos)
    message.remove_prefix(at + 3);
  constexpr std::string_view kExpected = "; expected ";
  std::string_view expected = "JSON";
  if (const size_t at = message.rfind(kExpected);
      at != std::string_view::npos) {
    expected = message.substr(at + kExpected.size());
    message = message.substr(0, at);
  }
  message = message.substr(0, message.find("; last read: "));
  if (message.starts_with("unexpected ")) message.remove_prefix(11);
  if (message == "end of input")
    return fmt::format("expected {}, found the end of the text",
                       OneLine(expected));

  std::string_view line = text.substr(0, std::min(byte + 1, text.size()));
  if (const size_t newline = line.rfind('\n', byte == 0 ? 0 : byte - 1);
      newline != std::string_view::npos)
    line.remove_prefix(newline + 1);
  if (line.size() > 30) line.remove_prefix(line.size() - 30);
  return fmt::format("expected {}, found {} at the end of {}",
                     OneLine(expected), OneLine(message, 160), Quoted(line));
}

// Refuses text that is beyond a limit, before the parser takes the memory.
void RefuseSizes(std::string_view text, std::string_view file) {
  JsonScan scan;
  const JsonScan::Stop stop = scan.Add(text);
  const auto fail = [&](const std::string& reason) {
    throw NoJson(file, text, scan.stop_byte(), reason);
  };
  switch (stop) {
    case JsonScan::Stop::kGoesOn:
    case JsonScan::Stop::kSyntax:  // the parser says it in more detail
      return;
    case JsonScan::Stop::kZero:
      return fail("expected JSON, found a zero byte");
    case JsonScan::Stop::kDepth:
      return fail(fmt::format(
          "expected JSON nested at most {} deep, found more", kMostJsonDepth));
    case JsonScan::Stop::kValues:
      return fail(fmt::format("expected at most {} values, found more",
                              kMostJsonValues));
    case JsonScan::Stop::kToken:
      return fail(fmt::format(
          "expected strings, numbers and blanks of at most {} bytes, found "
          "more",
          kMostJsonToken));
  }
}

}  // namespace

JsonField::JsonField(const nlohmann::json& document, std::string file)
    : JsonField(document, std::make_shared<const Origin>(
                              Origin{&document, std::move(file)})) {}

JsonField JsonField::Get(std::string_view key) const {
  if (!value_->is_object()) Fail("an object");
  const auto& members = value_->get_ref<const json::object_t&>();
  if (const auto member = members.find(key); member != members.end())
    return {member->second, origin_};
  std::vector<std::string> keys;
  keys.reserve(members.size());
  for (const auto& [other, unused] : members) keys.push_back(other);
  const std::vector<std::string> near = NearestNames(key, keys, 1);
  Complain(fmt::format(
      "expected the key \"{}\", found none{}", key,
      near.empty() ? "" : fmt::format(" (but {})", Quoted(near.front()))));
}

bool JsonField::IsNull() const { return value_->is_null(); }

bool JsonField::Has(std::string_view key) const {
  if (!value_->is_object()) Fail("an object");
  const auto& members = value_->get_ref<const json::object_t&>();
  const auto member = members.find(key);
  return member != members.end() && !member->second.is_null();
}

std::vector<JsonField> JsonField::Elements() const {
  if (!value_->is_array()) Fail("an array");
  std::vector<JsonField> elements;
  elements.reserve(value_->size());
  for (const auto& element : *value_) elements.push_back({element, origin_});
  return elements;
}

std::string JsonField::String() const {
  if (!value_->is_string()) Fail("a string");
  return value_->get<std::string>();
}

bool JsonField::Bool() const {
  if (!value_->is_boolean()) Fail("true or false");
  return value_->get<bool>();
}

int64_t JsonField::Int(int64_t least, int64_t most) const {
  const std::optional<int64_t> number = WholeNumber(*value_);
  if (number && *number >= least && *number <= most) return *number;
  if (least == most) Fail(fmt::to_string(least));
  if (most == INT64_MAX)
    Fail(fmt::format("a whole number of at least {}", least));
  Fail(fmt::format("a whole number from {} to {}", least, most));
}

int64_t JsonField::Bytes() const {
  const std::optional<int64_t> number = WholeNumber(*value_);
  if (number && *number >= 0 && *number <= kMostExactInteger) return *number;
  Fail("a whole number of bytes, 0 to 2^53");
}

int64_t JsonField::SignedBytes() const {
  const std::optional<int64_t> number = WholeNumber(*value_);
  if (number && *number >= -kMostExactInteger && *number <= kMostExactInteger)
    return *number;
  Fail("a whole number of bytes, -2^53 to 2^53");
}

double JsonField::Number() const {
  if (value_->is_number()) {
    const double number = value_->get<double>();
    if (std::abs(number) <= kMostNumber) return number;
  }
  Fail("a number, -1e18 to 1e18");
}

double JsonField::NonNegativeNumber() const {
  if (value_->is_number()) {
    const double number = value_->get<double>();
    if (number >= 0 && number <= kMostNumber) return number;
  }
  Fail("a number, 0 to 1e18");
}

std::vector<std::string> JsonField::Strings() const {
  std::vector<std::string> strings;
  for (const JsonField& element : Elements())
    strings.push_back(element.String());
  return strings;
}

void JsonField::Fail(std::string_view expected) const {
  Complain(fmt::format("expected {}, found {}", expected, Describe(*value_)));
}

void JsonField::Complain(std::string_view message) const {
  std::string path = PathTo(*origin_->document, value_).value_or("");
  if (path.starts_with('.')) path.erase(0, 1);
  throw InputError(fmt::format("{}: {}{}{}",
                               OneLine(origin_->file, kMostFileName), path,
                               path.empty() ? "" : ": ", message));
}

nlohmann::json ParseJson(std::string_view text, std::string_view file) {
  RefuseSizes(text, file);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    throw NoJson(file, text, byte, Condense(error.what(), text, byte));
  } catch (const nlohmann::json::out_of_range& error) {
    const std::string_view message = error.what();
    const size_t quote = message.find('\'');
    const std::string_view number =
        quote == std::string_view::npos
            ? std::string_view()
            : message.substr(quote + 1, message.rfind('\'') - quote - 1);
    const size_t at = number.empty() ? 0 : text.find(number);
    throw NoJson(
        file, text, at == std::string_view::npos ? 0 : at,
        fmt::format("expected a number that a double can hold, found {}",
                    OneLine(number)));
  }
}

void RequireFormat(const JsonField& root, std::string_view format,
                   int64_t version) {
  const JsonField format_field = root.Get("format");
  if (format_field.String() != format) format_field.Fail(Quoted(format));
  root.Get("version").Int(version, version);
}

}  // namespace acplan::graph
