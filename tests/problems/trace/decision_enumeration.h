#pragma once

#include <cstdint>
#include <optional>

#include "problems/trace/problem/trace_problem.h"
#include "tests/problems/trace/trace_case.h"

namespace acplan::problems {

// Limits of an enumeration of every plan of a trace problem with skips that the
// simulation accepts, need-driven or not: each set of candidate modules that
// are not called inside one another, with each decision about each operator
// that keeps the rules of groups (the operators of a group that are not skipped
// are saved or recomputed as one, as its rule says) and each choice of the kept
// results. Policies that the simulation refuses for a unit alone are left out.
//
// There is no enumeration if a unit has more than `most_operators`, or if there
// are more plans than `most`. The first plan is the one without units.
struct DecisionLimits {
  std::optional<int> max_units = {};
  int most_operators = 6;
  int64_t most = 3000;
};
std::optional<TracePlans> EnumerateDecisions(const TraceProblem& problem,
                                             const DecisionLimits& limits);

}  // namespace acplan::problems
