#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// Returns what each stage keeps and runs again, in at most 100 columns.
// `report` must have a plan.
std::string PlanText(const costmodel::TrainingReport& report,
                     const Terminal& terminal);

// Returns the plan as JSON (docs/file_formats.md, "Plan of a training run"):
// `bound_s`, `optimal`, and for each stage the policies of its layers.
nlohmann::ordered_json PlanJson(const costmodel::TrainingReport& report);

}  // namespace acplan::cli
