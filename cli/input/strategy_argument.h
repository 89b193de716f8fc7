#pragma once

#include <optional>
#include <string>

namespace acplan::cli {

// How an argument names the strategy of a training run.

// Returns whether an argument lists settings ("tp=8,pp=4"), and names no file.
bool IsSettingList(const std::string& argument);

// A file, and the rank in it where the argument names one: "best.json:2" is the second of
// best.json. A colon belongs to the name of a file that does not end before it.
struct StrategyFile {
  std::string file;
  std::optional<std::string> rank;
};
StrategyFile SplitStrategyArgument(const std::string& argument);

// Returns the file that an argument names; "": none.
std::string FileOfStrategy(const std::string& argument);

}  // namespace acplan::cli
