#pragma once

#include <cstdint>
#include <optional>

#include "problems/trace/problem/trace_problem.h"
#include "tests/problems/trace/trace_case.h"

namespace acplan::problems {

// Every plan of a trace problem that skips that the simulation does not refuse,
// whether need-driven or not: each set of candidate modules none of which is called
// inside another, with each decision about each operator that keeps the rules of
// groups (what is not skipped of a group is saved or recomputed as one, as its
// rule says) and each choice of the results that are kept. Policies that the
// simulation refuses for a unit alone are left out.
//
// Nothing where a unit has more than `most_operators`, or where there are more
// plans than `most`. The first plan is that without units.
struct DecisionLimits {
  std::optional<int> max_units = {};
  int most_operators = 6;
  int64_t most = 3000;
};
std::optional<TracePlans> EnumerateDecisions(const TraceProblem& problem,
                                             const DecisionLimits& limits);

}  // namespace acplan::problems
