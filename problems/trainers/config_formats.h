#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::problems {

// The files that trainers are configured by, parsed into one form.

enum class ConfigFormat { kYaml, kToml, kJson, kPython, kFlags };

// The most values of a configuration: YAML's aliases can stand for any number of values in a
// few lines.
inline constexpr int64_t kMostConfigValues = 100'000;

// The key under which the object of a call in Python, f(x=1), has the name of what is called.
inline constexpr const char* kCallKey = "()";

struct ParsedConfig {
  nlohmann::json root = nlohmann::json::object();
  std::set<std::string> words = {};  // the names in Python code
  // For the keys that Python code sets to different values: those beside the one in `root`.
  std::map<std::string, std::vector<nlohmann::json>> other_values = {};
};

// Each function parses a text, and throws InputError that begins with `name` and has the line
// if the text is not of the format.

// Parses YAML 1.1 as PyYAML reads it: yes, no, on and off are booleans. Has yaml-cpp behind
// it.
nlohmann::json ParseYaml(std::string_view text, const std::string& name);

// Parses TOML 1.0. Has toml++ behind it.
nlohmann::json ParseToml(std::string_view text, const std::string& name);

// Finds in Python code the values that names, attributes, keyword arguments and keys of
// dictionaries are set to, wherever they stand; nothing is run. Literals become values, a
// call becomes an object with kCallKey, a dotted name becomes a text, and another expression
// an object with the key "?". With `function`, only the code of that function counts, with
// the functions of the file that it calls before it, and the last value of a key holds.
ParsedConfig ParsePython(std::string_view text, const std::string& name,
                         std::string_view function);

// Finds the flags of a command line or a shell script: --key value, --key=value, --key
// (true), --no-key (false). A key's '-' is read as '_', and a key with dots is a path. The
// words that belong to no flag are among the words of the configuration.
ParsedConfig ParseFlags(std::string_view text, const std::string& name);

}  // namespace acplan::problems
