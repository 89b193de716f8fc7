#pragma once

#include <vector>

#include "graph/profile/profile.h"
#include "tests/problems/joint_profile_enumeration.h"

namespace acplan::problems {

// A random planning problem for units and operators on a random profile, with
// the oracle's view of it.
struct JointProfileCase {
  explicit JointProfileCase(unsigned seed);

  // Returns a budget between the least budget and the baseline, the least
  // budget, and one a byte less. All are at least 1.
  std::vector<double> Budgets() const;

  graph::Profile profile;
  JointProfileEnumerationOptions options;
  JointProfileEnumeration all;
  double least_budget = 0;  // whole bytes
  double between = 0;
};

}  // namespace acplan::problems
