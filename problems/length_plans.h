#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "problems/device_trials.h"
#include "problems/plan/length_steps.h"
#include "problems/plan/plan_table.h"
#include "problems/plan_options.h"
#include "problems/segment_plans.h"

namespace acplan::problems {

// A question about a run of batches of several lengths. Refers to the problem, which must
// outlive it. options.limits hold for the whole answer.
struct LengthQuestion {
  const LengthProblem* problem = nullptr;
  PlanOptions options = {};
  SegmentChoice segments = {};
  DeviceChoice device = {};
  int64_t most_plans = 1;
  // The lengths that an entry may end with; empty: as FindSwitches chooses them
  // (length_buckets.h).
  std::vector<int64_t> switches = {};
};

// A table, or the reason why there is none.
struct LengthAnswer {
  std::optional<PlanTable> table = {};
  // True if no plan's live bytes fit the longest batches: proven.
  bool is_infeasible = false;
  // The least budget of live bytes that the longest batches need, if that is known.
  std::optional<int64_t> minimum_budget_bytes = {};
  // The smallest larger device for any table that was tried.
  std::optional<int64_t> least_device_bytes = {};
};

// Returns a table of at most so many plans with which the run of all batches ends on the
// device, with the least mean recomputation that the search finds.
//
// The bound of the table is proven for all tables that end their entries at the same
// lengths. Throws InputError as BuildFamilies, and if so few plans are not for all
// batches, because their steps run different operators;
// std::logic_error if the table fails its check (check/table_rules.h): a defect of acplan.
LengthAnswer AskForLengths(const LengthQuestion& question);

}  // namespace acplan::problems
