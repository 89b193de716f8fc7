#pragma once

#include <string>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The command `acplan remat GRAPH --any-schedule`: which operators run again,
// and when, with no rule except the order of first runs. Flags are those of
// remat, as the user wrote them.
struct AnyScheduleFlags {
  std::string graph;
  std::string budget;
  std::string frontier;
  std::string time_limit;
  std::string gap;
  std::string output;
  bool json = false;
  bool memory = false;
};

// Returns the exit code. Throws InputError for wrong flags or files.
int RunAnySchedule(const AnyScheduleFlags& flags, const Terminal& terminal);

}  // namespace acplan::cli
