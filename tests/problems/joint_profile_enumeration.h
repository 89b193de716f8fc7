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
// profile, and shares no code with the engines.
struct JointProfileEnumeration {
  struct Policy {
    double bytes = 0;  // discarded, net of what the frame holds; > 0
    double ms = 0;     // recomputed
  };
  struct Unit {
    std::string fqn;
    int time = 0;
    double held_bytes = 0;
    std::vector<char> contains;    // by record: is it inside?
    std::vector<Policy> policies;  // that no other beats; both ascending
    std::vector<int> nested_with;  // units

    // Returns the least milliseconds that discard at least so many bytes;
    // +infinity if that is too many.
    double LeastMs(double bytes) const;
  };
  std::vector<Unit> units;  // candidates that can discard something, by time
  std::vector<double> records;  // bytes in use, by time
  double fixed_bytes = 0;
  std::optional<int> max_units;

  // Returns the least milliseconds within a budget; nullopt if no plan fits.
  std::optional<double> LeastMs(double budget) const;
  // Returns the least budget that some plan meets.
  double LeastBudget() const;
  // Returns the most bytes in use with these units (by index), each of which
  // discards so many bytes.
  double Peak(const std::vector<std::pair<int, double>>& chosen_units) const;
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
