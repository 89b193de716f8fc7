#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"
#include "problems/model/module_problem.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// An oracle: every set of units that are not nested, with the cheapest bytes
// for each. It shares the statement of the problem with the engines, but no
// code.
struct Enumeration {
  struct Unit {
    int id = 0;
    int time = 0;
    double held_bytes = 0;
    std::vector<char> contains;  // by record: is it inside?
    // Convex and rising, net of the held bytes; every unit has at least the
    // first knot.
    std::vector<Knot> knots;
    std::vector<int> nested_with;  // units
  };
  struct Record {
    int time = 0;
    double bytes = 0;
  };
  std::vector<Unit> units;
  std::vector<Record> records;  // by time
  double fixed_bytes = 0;
  std::optional<int> max_units;

  // Returns the least milliseconds within a budget; nullopt if no set fits.
  std::optional<double> LeastMs(double budget) const;
  // Returns the least budget that some set fits.
  double LeastBudget() const;
};

struct EnumerationOptions {
  MemoryOptions memory = {};
  std::vector<std::string> ac_units = {};
  std::vector<std::string> fsdp_units = {};
  std::optional<int> max_units = std::nullopt;
};
// Builds the oracle from the names, orders and statistics of a profile.
Enumeration EnumerationOf(const graph::Profile& profile,
                          const EnumerationOptions& options);
Enumeration EnumerationOf(const ModuleProblem& problem);

// Returns the largest record of a profile with these units, which have ratios.
double PeakOf(const graph::Profile& profile,
              const std::vector<PlannedModule>& modules,
              const MemoryOptions& memory);
// Returns the milliseconds that these units recompute.
double MsOf(const graph::Profile& profile,
            const std::vector<PlannedModule>& modules);

}  // namespace acplan::problems
