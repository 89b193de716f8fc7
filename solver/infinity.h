#pragma once

#include <limits>

namespace acplan::solver {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace acplan::solver
