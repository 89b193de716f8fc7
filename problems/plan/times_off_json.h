#pragma once

#include <nlohmann/json_fwd.hpp>

#include "graph/base/json_fields.h"
#include "problems/plan/times_off.h"

namespace acplan::problems {

// Reads the object `times_off` of plan files. Throws InputError as ReadPlan.
TimesOff TimesOffFromJson(const graph::JsonField& field);
nlohmann::ordered_json ToJson(const TimesOff& times_off);

}  // namespace acplan::problems
