#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::problems {

// The text of a configuration, of which single values are asked by their keys: "KEY: VALUE"
// in YAML, "KEY = VALUE" in TOML and Python, "KEY": VALUE in a dictionary. This is no
// parser of these languages: it finds the first place where the key stands so. Comments
// begin with '#'.
class ConfigText {
 public:
  // Errors name `name` in place of a file.
  ConfigText(std::string_view text, std::string name);

  // Returns whether the text has a word outside of comments, such as a table or a class.
  bool Mentions(std::string_view word) const;

  // Returns a value without its quotes; nothing if the key is not there.
  std::optional<std::string> Value(std::string_view key) const;

  // Returns whether a value is true ("true", "True"). Throws InputError if it is neither
  // true nor false.
  bool IsTrue(std::string_view key, bool fallback = false) const;

  // Returns a whole number of at least `least`. Throws InputError for other values.
  int Whole(std::string_view key, int least, int fallback) const;

  // Returns the values of a list or a set, in brackets, after commas or as lines that begin
  // with a dash, without their quotes; nothing if the key is not there.
  std::optional<std::vector<std::string>> List(std::string_view key) const;

  // Throws InputError: "FILE: KEY: expected EXPECTED, found VALUE".
  [[noreturn]] void Fail(std::string_view key, const std::string& expected,
                         const std::string& value) const;

 private:
  // Returns where the value of a key begins; npos if there is none.
  size_t FindValue(std::string_view key) const;

  std::string text_;  // without comments
  std::string name_;
};

}  // namespace acplan::problems
