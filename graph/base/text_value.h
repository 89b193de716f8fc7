#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

struct TextMember;

// A JSON value whose scalars are text, as Python's str writes them: True, None,
// 10.0, and whole numbers of any size digit by digit.
struct TextValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  std::string text;                 // of a scalar
  std::vector<TextValue> elements;  // of an array
  // The members of an object, in the order of the file; a key that comes again
  // keeps its place and has the last value.
  std::vector<TextMember> members;

  // Null where this is no object or lacks the key.
  const TextValue* Find(std::string_view key) const;
};

// Of an object. A struct of its own: a vector may be declared of what is not complete
// yet, std::pair may not.
struct TextMember {
  std::string key;
  TextValue value;
};

// `file` is for complaints. Throws InputError where it is no JSON.
TextValue ParseTextValue(std::string_view json, std::string_view file);

// As Python's str writes it, arrays and objects too: "[1, {'a': None}]".
std::string PythonText(const TextValue& value);

}  // namespace acplan::graph
