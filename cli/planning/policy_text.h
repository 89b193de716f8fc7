#pragma once

#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// Units of a plan whose names differ only in one number and that do the same
// (times up to rounding): "GPT2.h.0-3,7".
struct UnitGroup {
  std::string name;
  std::vector<const problems::PlannedModule*> units;  // in the plan's order
};

// Returns the groups of a plan, ordered by their first unit. The result refers
// to the plan.
std::vector<UnitGroup> GroupUnits(
    const std::vector<problems::PlannedModule>& units);

// Describes a policy, with the shorter side spelled out: "save mm, mm, bmm;
// recompute 14 others", with "; skip 9 others" if operators are skipped.
// View-like operators cost nothing, and are not counted unless they are saved.
// If there are more than a few names, equal ones are counted, "mm × 7", and a
// list that is still too long ends in "9 more".
std::string PolicyText(const problems::PlannedModule& unit,
                       const graph::SacStatistics& sac);

}  // namespace acplan::cli
