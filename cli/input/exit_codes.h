#pragma once

#include <stdexcept>

namespace acplan::cli {

// The exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;   // everything else, including a broken
                                         // plan
inline constexpr int kExitBadInput = 2;  // usage or bad input
inline constexpr int kExitInfeasible = 3;  // proven
inline constexpr int kExitLimit = 4;       // a limit was hit without a plan

// Thrown if a limit was hit before there was any answer.
class LimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace acplan::cli
