#pragma once

#include <string>

#include "graph/profile/model_info.h"

namespace acplan::cli {

// Returns a line on how far the device's predicted times are from measured ones; "" if they
// are not predictions.
std::string TimeErrorsText(const graph::DeviceInfo& device);

}  // namespace acplan::cli
