#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/input/planning_flags.h"
#include "cli/planning/allocator_flags.h"

namespace acplan::cli {

// The flags of commands that search for policies of a trainer.
struct TrainerFlags {
  static constexpr double kSeconds = 5;  // --time-limit, of each search

  std::string blocks;
  PlanningFlags planning;
  AllocatorFlags allocator;

  // Adds --blocks, --reserve, --world-size, --time-limit, --device-memory and the flags of a
  // run on a device; `of_device` describes --device-memory.
  void AddTo(CLI::App& app, const std::string& of_device);
};

}  // namespace acplan::cli
