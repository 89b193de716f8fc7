#pragma once

#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/planning/plan_record.h"

namespace acplan::cli {

// A plan for people: what blocks recompute, memory and time by stage, time by
// kind, and the fixed policies beside it. Of the stages only the first where
// `first_stage_only`. Without a newline at the end.
std::string PlanText(const costmodel::PlanRecord& record, bool first_stage_only,
                     const Terminal& terminal);

}  // namespace acplan::cli
