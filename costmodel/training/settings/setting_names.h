#pragma once

#include <set>
#include <string>
#include <string_view>

#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// Returns the name that settings use: "fp8_delayed".
std::string_view NameOf(ProductPrecision precision);
// Returns the names that settings use for recomputed parts: "core_attn+moe_act".
std::string NamesOf(const std::set<LayerPart>& parts);

}  // namespace acplan::costmodel
