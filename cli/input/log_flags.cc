#include "cli/input/log_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

// The commands that log, and folders of them; old names as well.
constexpr std::array<std::string_view, 15> kCommands = {
    "llm",     "llm-optimal-execution",
    "loe",     "llm-all-executions",
    "lae",     "llm-parameter-calculator",
    "lpc",     "llm-validation",
    "lv",      "version",
    "v",       "llm-merge",
    "train",   "llm-plan",
    "calculon"};

constexpr std::string_view kFolder = "calculon";

constexpr std::array<std::pair<std::string_view, int>, 8> kLevels = {
    {{"NOTSET", 0},
     {"DEBUG", 10},
     {"INFO", 20},
     {"WARN", 30},
     {"WARNING", 30},
     {"ERROR", 40},
     {"FATAL", 50},
     {"CRITICAL", 50}}};

bool IsCommand(std::string_view argument) {
  return std::ranges::find(kCommands, argument) != kCommands.end();
}

int ParseLevel(const std::string& text) {
  const auto place = std::ranges::find(
      kLevels, text, &std::pair<std::string_view, int>::first);
  if (place == kLevels.end()) {
    throw InputError(fmt::format(
        "-v: expected DEBUG, INFO, WARNING, ERROR or CRITICAL before the "
        "command, found {}",
        graph::Quoted(text)));
  }
  return place->second;
}

// The value of the flag at `index`, which is part of the same argument or is
// the next one, and the number of arguments that both take.
struct FlagValue {
  std::string value;
  size_t count = 0;
};

std::optional<FlagValue> TakeValue(const std::vector<std::string>& arguments,
                                   size_t index, std::string_view short_name,
                                   std::string_view long_name) {
  const std::string& argument = arguments[index];
  if (argument == short_name || argument == long_name) {
    if (index + 1 == arguments.size() || IsCommand(arguments[index + 1])) {
      return std::nullopt;
    }
    return FlagValue{arguments[index + 1], 2};
  }
  const std::string joined = std::string(long_name) + "=";
  if (argument.starts_with(joined)) {
    return FlagValue{argument.substr(joined.size()), 1};
  }
  if (argument.starts_with(short_name) && !argument.starts_with("--")) {
    return FlagValue{argument.substr(short_name.size()), 1};
  }
  return std::nullopt;
}

}  // namespace

LogFlags TakeLogFlags(const std::vector<std::string>& arguments) {
  LogFlags flags;
  std::optional<std::string> level;
  size_t i = 0;
  while (i < arguments.size() &&
         (arguments[i] == kFolder || !IsCommand(arguments[i]))) {
    if (arguments[i] == kFolder) {
      // The flags of Calculon stand before its commands.
      flags.arguments.push_back(arguments[i++]);
    } else if (const auto file = TakeValue(arguments, i, "-l", "--log")) {
      if (file->value.empty()) {
        throw InputError("--log: expected a file or -, found nothing");
      }
      flags.log.file = file->value == "-" ? "" : file->value;
      i += file->count;
    } else if (const auto name = TakeValue(arguments, i, "-v", "--verbosity")) {
      level = name->value;
      i += name->count;
    } else {
      const bool has_value =
          arguments[i] == "--color" || arguments[i] == "--errors";
      if (!has_value && !arguments[i].starts_with('-')) break;
      flags.arguments.push_back(arguments[i++]);
      if (has_value && i < arguments.size()) {
        flags.arguments.push_back(arguments[i++]);
      }
    }
  }
  // It is another command, or there is none.
  if (i == arguments.size() || !IsCommand(arguments[i])) {
    return {arguments, {}};
  }
  if (level) flags.log.least_level = ParseLevel(*level);
  flags.arguments.insert(flags.arguments.end(), arguments.begin() + i,
                         arguments.end());
  return flags;
}

}  // namespace acplan::cli
