#pragma once

#include <string>
#include <vector>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// Arguments of the program, and what "-l LOG" and "-v LEVEL" before a command
// of the cost model say; those are taken out. Before any other command -v is
// the flag --verbose.
struct LogFlags {
  std::vector<std::string> arguments;
  ResultLog log;
};

// Throws InputError for a level that Python's logging does not know.
LogFlags TakeLogFlags(const std::vector<std::string>& arguments);

}  // namespace acplan::cli
