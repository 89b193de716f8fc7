#pragma once

#include <set>
#include <string>
#include <string_view>

#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// As settings name them: "fp8_delayed".
std::string_view NameOf(ProductPrecision precision);
// "core_attn+moe_act": as settings name the parts that are recomputed.
std::string NamesOf(const std::set<LayerPart>& parts);

}  // namespace acplan::costmodel
