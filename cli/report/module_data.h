#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/input/profile_input.h"
#include "graph/profile/module_tree.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// Returns the modules of a profile in pre-order, in the form that report pages
// show: name, class if a trace has it, parent (an index in the list, -1: none),
// parameters, activations of all calls, and those of them that no module inside
// has.
nlohmann::ordered_json ModulesJson(const ProfileInput& input,
                                   const graph::ModuleTree& tree);

// Returns what a plan does to each of its units: its name, the time and bytes
// that it recomputes and discards, and, by name, the numbers of operators that
// it saves, recomputes, skips and offloads.
nlohmann::ordered_json UnitsJson(const problems::Plan& plan);

}  // namespace acplan::cli
