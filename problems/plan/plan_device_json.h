#pragma once

#include <nlohmann/json_fwd.hpp>

#include "graph/base/json_fields.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Reads the object `device` of plan files. Throws InputError as ReadPlan.
PlanDevice PlanDeviceFromJson(const graph::JsonField& field);
nlohmann::ordered_json ToJson(const PlanDevice& device);

}  // namespace acplan::problems
