#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/input/planning_flags.h"

namespace acplan::cli {

// The flags of commands that search for policies of a trainer.
struct TrainerFlags {
  static constexpr double kSeconds = 5;  // --time-limit, of each search

  std::string blocks;
  PlanningFlags planning;

  // Adds --blocks, --reserve, --world-size and --time-limit.
  void AddTo(CLI::App& app);
};

}  // namespace acplan::cli
