#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "problems/model/memory_model.h"

namespace acplan::problems {

// An oracle for units and operators together: every set of units that are not
// nested, with every policy of each that keeps the rules of
// tests/support/operator_rules.h. It reads names, orders and statistics of a
// profile, and knows none of the code that solves the problem.
struct JointProfileEnumeration {
  struct Policy {
    double bytes = 0;  // discarded, net of what the frame holds; > 0
    double ms = 0;     // recomputed
  };
  struct Unit {
    std::string fqn;
    int time = 0;
    double held_bytes = 0;
    std::vector<char> contains;    // a record: is it inside?
    std::vector<Policy> policies;  // that no other beats; both ascending
    std::vector<int> nested_with;  // units

    // The least milliseconds with at least so many bytes; +infinity where that
    // is too many.
    double LeastMs(double bytes) const;
  };
  std::vector<Unit> units;  // candidates that can discard something, by time
  std::vector<double> records;  // bytes in use, by time
  double fixed_bytes = 0;
  std::optional<int> max_units;

  // The least milliseconds within a budget; nullopt where no plan fits.
  std::optional<double> LeastMs(double budget) const;
  // The least budget that some plan meets.
  double LeastBudget() const;
  // The most bytes in use with these units (by index) that discard so many
  // bytes each.
  double Peak(const std::vector<std::pair<int, double>>& chosen) const;
};

struct JointProfileEnumerationOptions {
  MemoryOptions memory = {};
  std::vector<std::string> ac_units = {};
  std::vector<std::string> fsdp_units = {};
  std::optional<int> max_units = std::nullopt;
  graph::OperatorPatterns patterns = {};
};
JointProfileEnumeration JointEnumerationOf(
    const graph::Profile& profile,
    const JointProfileEnumerationOptions& options);

}  // namespace acplan::problems
