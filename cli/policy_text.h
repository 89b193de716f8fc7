#pragma once

#include <string>
#include <vector>

#include "graph/profile.h"
#include "problems/plan.h"

namespace acplan::cli {

// Units of a plan that differ only in one number of their name and do the same:
// "GPT2.h.0-3,7".
struct UnitGroup {
  std::string name;
  std::vector<const problems::PlannedModule*> units;  // in the plan's order
};

// The groups of a plan, by their first unit. Refers to the plan.
std::vector<UnitGroup> GroupUnits(
    const std::vector<problems::PlannedModule>& units);

// What a policy does, the shorter side spelled out: "save mm, mm, bmm;
// recompute 14 others". View-like operators are recomputed always, and not
// counted. Many equal names become "mm × 7".
std::string PolicyText(const problems::PlannedModule& unit,
                       const graph::SacStatistics& sac);

}  // namespace acplan::cli
