#pragma once

#include <string>
#include <vector>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The arguments of the program without "-l LOG" and "-v LEVEL" before a command
// of the cost model, and the log that those describe. Before any other command
// -v is the flag --verbose.
struct LogFlags {
  std::vector<std::string> arguments;
  ResultLog log;
};

// Takes the flags of the log out of the arguments. Throws InputError for a
// level that Python's logging does not know.
LogFlags TakeLogFlags(const std::vector<std::string>& arguments);

}  // namespace acplan::cli
