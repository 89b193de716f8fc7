#pragma once

#include <string_view>

#include "solver/search.h"

namespace acplan::solver {

// Returns the status as files and JSON name it; `none` if there is no solution.
inline std::string_view NameOf(SearchStatus status, std::string_view none) {
  switch (status) {
    case SearchStatus::kOptimal:
      return "optimal";
    case SearchStatus::kFeasible:
      return "feasible";
    case SearchStatus::kInfeasible:
      return "infeasible";
    case SearchStatus::kNoSolution:
      break;
  }
  return none;
}

}  // namespace acplan::solver
