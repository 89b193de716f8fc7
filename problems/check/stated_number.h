#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "problems/plan/plan.h"

namespace acplan::problems {

// Returns whether a stated number differs from the actual one by more than
// rounding.
inline bool IsFalse(double stated, double actual) {
  return stated != kNotStated &&
         std::abs(stated - actual) > 1e-6 * std::abs(actual) + 1e-9;
}

// Returns whether two numbers of bytes differ by more than the rounding of
// sums.
inline bool AreOtherBytes(int64_t stated, int64_t actual) {
  return static_cast<double>(std::abs(stated - actual)) >
         1 + 1e-12 * static_cast<double>(actual);
}

template <typename Value>
std::string Differs(std::string_view what, const Value& stated,
                    const Value& actual) {
  return fmt::format("the plan says its {} is {}; it is {}", what, stated,
                     actual);
}

}  // namespace acplan::problems
