#pragma once

#include <string>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::cli {

// A module and the groups of operators that a policy may decide in it.
struct ModuleStatistics {
  const graph::Module* module = nullptr;
  graph::OperatorGroups groups;

  const graph::SacStatistics& sac() const { return *module->sac; }
};

// Returns the module that the argument MODULE of a command names. The result
// refers to the profile. Throws InputError for a module that is unknown or has
// no operators, a pattern that matches none of them, and rules that contradict
// each other.
ModuleStatistics FindStatistics(const graph::Profile& profile,
                                const std::string& name,
                                const graph::OperatorPatterns& patterns);

}  // namespace acplan::cli
