#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"

namespace acplan::graph {

// A JSON value together with its place, so that every error names file and path
// ("gpt2.json: modules[3].act_total: expected a whole number of bytes, found \"12\"").
// Points into the document, which must outlive it.
class JsonField {
 public:
  // `document` is the whole document: paths in errors start there.
  JsonField(const nlohmann::json& document, std::string file);

  // Returns the member `key` of an object. Throws InputError if this is no object or lacks
  // the key.
  JsonField Get(std::string_view key) const;
  // Returns whether this object has `key` with a value other than null.
  bool Has(std::string_view key) const;
  // Returns the elements of an array. Throws InputError if this is no array.
  std::vector<JsonField> Elements() const;

  // Returns the value, as each of the functions below does with its type. They throw
  // InputError if the value is of another type, is not finite, or is out of range.
  std::string String() const;
  bool Bool() const;
  int64_t Int(int64_t least, int64_t most) const;
  // Returns bytes: a whole number, 0 to 2^53; an integral float such as 1e9 is accepted.
  int64_t Bytes() const;
  // Returns bytes that may be negative: -2^53 to 2^53.
  int64_t SignedBytes() const;
  double Number() const;             // finite, magnitude up to 1e18
  double NonNegativeNumber() const;  // finite, 0 to 1e18
  std::vector<std::string> Strings() const;

  bool IsNull() const;
  const nlohmann::json& json() const { return *value_; }

  // Throws InputError("file: path: expected ..., found ...").
  [[noreturn]] void Fail(std::string_view expected) const;
  // Throws InputError("file: path: message").
  [[noreturn]] void Complain(std::string_view message) const;

 private:
  // The path is looked up in the document only when there is an error, so that reading does
  // not pay for it.
  struct Origin {
    const nlohmann::json* document;
    std::string file;
  };

  JsonField(const nlohmann::json& value, std::shared_ptr<const Origin> origin)
      : value_(&value), origin_(std::move(origin)) {}

  const nlohmann::json* value_;
  std::shared_ptr<const Origin> origin_;
};

// Returns `read` applied to the member `key` of an object; nothing if it is missing or
// null.
template <typename Read>
auto Optional(const JsonField& object, std::string_view key, Read read)
    -> std::optional<decltype(read(object))> {
  if (!object.Has(key)) return std::nullopt;
  return read(object.Get(key));
}

// Parses JSON text (RFC 8259, in which NaN and Infinity are no numbers). Throws InputError
// with the file's name, line and column if the text is no JSON, has a number that no double
// can hold, or is beyond a limit of json_scan.h.
nlohmann::json ParseJson(std::string_view text, std::string_view file);

// Throws InputError unless `format` and `version` of a document are the given ones.
void RequireFormat(const JsonField& root, std::string_view format,
                   int64_t version);

}  // namespace acplan::graph
