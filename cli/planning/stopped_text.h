#pragma once

#include <string_view>

#include "solver/search.h"

namespace acplan::cli {

// Returns why a search of `acplan remat` ended without a proof.
inline std::string_view StoppedText(solver::StoppedBy reason) {
  switch (reason) {
    case solver::StoppedBy::kTime:
      return "stopped by the time limit";
    case solver::StoppedBy::kInterrupt:
      return "interrupted";
    case solver::StoppedBy::kMemory:
      return "stopped by the limit on labels";
    case solver::StoppedBy::kGap:
      return "within the gap";
    default:
      return "without a proof";
  }
}

}  // namespace acplan::cli
