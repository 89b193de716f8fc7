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
  std::string text;                 // the value of a scalar
  std::vector<TextValue> elements;  // the elements of an array
  // The members of an object, in the order of the file. A repeated key keeps its first
  // place and has its last value.
  std::vector<TextMember> members;

  // Returns the member, or null if this is no object or lacks the key.
  const TextValue* Find(std::string_view key) const;
};

// A member of an object. It is a struct of its own because a vector may be declared with an
// incomplete type, and std::pair may not.
struct TextMember {
  std::string key;
  TextValue value;
};

// Parses a value. Errors name `file`. Throws InputError if the text is no JSON.
TextValue ParseTextValue(std::string_view json, std::string_view file);

// Returns the value as Python's str writes it, including arrays and objects: "[1, {'a':
// None}]".
std::string PythonText(const TextValue& value);

}  // namespace acplan::graph
