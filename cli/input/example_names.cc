#include "cli/input/example_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/input/data_folder.h"
#include "graph/base/input_error.h"
#include "graph/base/nearest_names.h"

namespace acplan::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "example:";

// A bundled file, and its path in the folder of data without what files of its kind end
// with.
struct Example {
  fs::path file;
  std::string name;
};

std::string WithoutEnding(std::string name) {
  for (const std::string_view ending : {".gz", ".json", ".csv"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

// Returns the bundled files, by name.
std::vector<Example> Examples() {
  std::vector<Example> examples;
  const fs::path folder = DataFolder();
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const std::string path = entry.path().lexically_relative(folder).string();
    const std::string name = WithoutEnding(path);
    if (entry.is_regular_file(error) && name != path) {
      examples.push_back({entry.path(), name});
    }
  }
  std::ranges::sort(examples, {}, &Example::name);
  return examples;
}

bool IsNamed(const Example& example, const std::string& name) {
  return example.name == name || example.name.ends_with("/" + name);
}

// Returns the path of the file of that name, with or without its folder.
std::string PathOf(const std::string& name) {
  const std::string stem = WithoutEnding(name);
  std::vector<std::string> names;  // of all, and their last parts
  std::vector<std::string> choices;
  std::string path;
  for (const Example& example : Examples()) {
    names.push_back(fs::path(example.name).filename().string());
    names.push_back(example.name);
    if (stem.empty() || !IsNamed(example, stem)) continue;
    choices.push_back(fmt::format("{}{}", kPrefix, example.name));
    path = example.file.string();
  }
  if (choices.size() == 1) return path;
  if (choices.size() > 1) {
    throw InputError(fmt::format("{}{}: expected one file, found {}", kPrefix,
                                 name, fmt::join(choices, ", ")));
  }
  const std::vector<std::string> nearest = graph::NearestNames(stem, names);
  throw InputError(fmt::format(
      "{}{}: no bundled file has this name{}; {} has them all", kPrefix, name,
      nearest.empty()
          ? ""
          : fmt::format("; did you mean {}{}?", kPrefix, nearest.front()),
      DataFolder().string()));
}

}  // namespace

std::vector<std::string> WithExamplePaths(std::vector<std::string> arguments) {
  bool is_output = false;
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    const size_t place = argument.find(kPrefix);
    const bool is_value = place == 0 || (place != std::string::npos &&
                                         argument[place - 1] == '=');
    if (is_value && !is_output && !argument.starts_with("--output=")) {
      argument = argument.substr(0, place) +
                 PathOf(argument.substr(place + kPrefix.size()));
    }
    is_output = argument == "-o" || argument == "--output";
  }
  return arguments;
}

}  // namespace acplan::cli
