#pragma once

#include <optional>
#include <string>

#include "cli/planning/allocator_flags.h"
#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The flags of `acplan simulate --snapshot`.
struct SnapshotFlags {
  std::string snapshot;
  std::optional<int> device = {};  // by default the one with most events
  AllocatorFlags allocator = {};
  std::string timeline = {};
  std::string output = {};
  bool json = false;
};

// Runs the history of a memory snapshot on PyTorch's allocator and prints what
// it takes, beside what was recorded. A run that fails is an answer: it returns
// kExitOk. Throws InputError for bad input.
int RunSimulateSnapshot(const SnapshotFlags& flags, const Terminal& terminal);

}  // namespace acplan::cli
