#pragma once

#include <stdexcept>

namespace acplan::cli {

// The exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // anything else, a broken plan among it
inline constexpr int kExitBadInput = 2;    // usage or bad input
inline constexpr int kExitInfeasible = 3;  // proven
inline constexpr int kExitLimit = 4;       // a limit was hit without a plan

// A limit was hit before there was anything to answer.
class LimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace acplan::cli
