#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/input/flags.h"
#include "cli/input/profile_input.h"
#include "cli/terminal/terminal.h"

namespace acplan::cli {

// The views of `acplan show`, each with its own text and JSON (docs/file_formats.md).

struct ShowFlags {
  std::string profile;
  std::vector<std::string> plans;
  bool modules = false;
  std::string depth;
  bool all = false;
  MemoryFlags memory;
  bool json = false;
};

// Prints peak memory and run-time of a model without a plan.
void ShowBaseline(const ShowFlags& flags, const ProfileInput& input,
                  const Terminal& terminal);

// Prints the baseline and plans side by side, under one memory model and world size: as given,
// else those of the first plan. Throws InputError for a plan that is not of the profile.
void ShowPlans(const ShowFlags& flags, const ProfileInput& input,
               const Terminal& terminal);

// Prints the tree of modules with its statistics.
void ShowModules(const ShowFlags& flags, const ProfileInput& input,
                 const Terminal& terminal);

}  // namespace acplan::cli
