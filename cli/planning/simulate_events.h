#pragma once

#include <string>

#include "cli/planning/allocator_flags.h"
#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The flags of `acplan simulate --events`.
struct EventFlags {
  std::string events;
  AllocatorFlags allocator = {};
  std::string timeline = {};
  std::string output = {};
  bool json = false;
};

// Runs the events of a file on PyTorch's allocator and prints what it takes.
// A run that fails is an answer: it returns kExitOk. Throws InputError for bad
// input.
int RunSimulateEvents(const EventFlags& flags, const Terminal& terminal);

}  // namespace acplan::cli
