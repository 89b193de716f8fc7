#pragma once

#include <nlohmann/json.hpp>

#include "cli/input/profile_input.h"
#include "graph/profile/module_tree.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// The modules of a profile in pre-order, as report pages show them: name, class
// where a trace says it, parent (a place in the list, -1: none), parameters,
// activations of all calls, and those of them that no module inside has.
nlohmann::ordered_json ModulesJson(const ProfileInput& input,
                                   const graph::ModuleTree& tree);

// What a plan does to each of its units: name, what it recomputes and discards,
// and how many operators of which name it saves, recomputes, skips and offloads.
nlohmann::ordered_json UnitsJson(const problems::Plan& plan);

}  // namespace acplan::cli
