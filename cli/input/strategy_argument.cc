#include "cli/input/strategy_argument.h"

#include <string_view>

namespace acplan::cli {

namespace {

bool IsJsonName(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".json.gz");
}

}  // namespace

bool IsSettingList(const std::string& argument) {
  return argument.find('=') != std::string::npos &&
         !IsJsonName(SplitStrategyArgument(argument).file);
}

StrategyFile SplitStrategyArgument(const std::string& argument) {
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos) return {argument, {}};
  const std::string file = argument.substr(0, colon);
  if (!IsJsonName(file)) return {argument, {}};
  return {file, argument.substr(colon + 1)};
}

std::string FileOfStrategy(const std::string& argument) {
  return IsSettingList(argument) ? "" : SplitStrategyArgument(argument).file;
}

}  // namespace acplan::cli
