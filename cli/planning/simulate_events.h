#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The flags of `acplan simulate --events`.
struct EventFlags {
  std::string events;
  std::string allocator;
  std::string device_memory;
  std::string torch_version;
  std::string timeline;
  std::string output;
  bool json = false;
  bool without_least = false;

  void AddTo(CLI::App& app);
  // Returns the name of a flag that is given and needs --events, "" for none.
  std::string_view FlagWithoutEvents() const;
};

// Runs the events of a file on PyTorch's allocator and prints what it takes.
// A run that fails is an answer: it returns kExitOk. Throws InputError for bad
// input.
int RunSimulateEvents(const EventFlags& flags, const Terminal& terminal);

}  // namespace acplan::cli
