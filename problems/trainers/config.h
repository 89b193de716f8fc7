#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "problems/trainers/config_formats.h"

namespace acplan::problems {

// A trainer's configuration, of which single values are asked by their paths:
// "fsdp_config.fsdp_activation_checkpointing" is a value in a table of YAML, TOML or JSON,
// in a dictionary or call that a name is set to in Python, or the flag
// --fsdp_config.fsdp_activation_checkpointing. Keys that nothing asks for are allowed.
class Config {
 public:
  // Parses a text, to which errors give a name in place of a file. `function`: see
  // ParsePython. Throws InputError if the text is not of the format.
  Config(std::string_view text, std::string name, ConfigFormat format,
         std::string_view function = "");

  ConfigFormat format() const { return format_; }
  bool IsPython() const { return format_ == ConfigFormat::kPython; }

  // Returns whether a path has a value other than null.
  bool Has(std::string_view path) const;

  // Returns whether a path has a value other than null, false and "None": a table counts.
  bool IsOn(std::string_view path) const;

  // Returns whether a value is this text.
  bool Is(std::string_view path, std::string_view text) const;

  // Throws InputError for a value other than a table, a call or null.
  void RequireTable(std::string_view path) const;

  // Returns the keys of a table, in ascending order; none if there is no table.
  std::vector<std::string> Keys(std::string_view path) const;

  // Returns whether the code of a Python file has a name, such as a class, or a command line
  // a word that belongs to no flag.
  bool Mentions(std::string_view word) const;

  // Returns whether a value is true. Throws InputError if it is neither true nor false.
  bool IsTrue(std::string_view path, bool fallback = false) const;

  // Returns a whole number of at least `least`. Throws InputError for other values.
  int Whole(std::string_view path, int least, int fallback) const;

  // Returns a value as text: the name of what a call in Python makes, or a scalar. Throws
  // InputError for a list or a table.
  std::optional<std::string> Text(std::string_view path) const;

  // Returns the values of a list, or the parts of a text between commas. Throws InputError
  // if one is no scalar.
  std::optional<std::vector<std::string>> List(std::string_view path) const;

  // Throws InputError: "FILE: PATH: expected EXPECTED, found VALUE". The first form shows
  // the value at the path.
  [[noreturn]] void Fail(std::string_view path,
                         const std::string& expected) const;
  [[noreturn]] void Fail(std::string_view path, const std::string& expected,
                         const std::string& value) const;

  const std::string& name() const { return name_; }

 private:
  const nlohmann::json* Find(std::string_view path) const;

  ParsedConfig parsed_;
  std::string name_;
  ConfigFormat format_;
};

}  // namespace acplan::problems
