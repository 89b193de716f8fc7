#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "problems/plan/length_steps.h"
#include "problems/plan/plan.h"
#include "problems/plan_options.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::problems {

// The lengths at [first, last] of a LengthProblem, under one plan.
struct Bucket {
  size_t first = 0;
  size_t last = 0;

  auto operator<=>(const Bucket&) const = default;
};

// The places of lengths, ascending, with which buckets may end; the longest that is trained
// is the last.
struct LengthSwitches {
  std::vector<size_t> places;
  // The places after which steps run other operators: no bucket goes on there.
  std::vector<size_t> breaks;
};

inline constexpr size_t kMostSwitches = 8;

// Returns the switches: `lengths`, each rounded down to one that is trained; or, if it
// is empty, at most kMostSwitches lengths, the longest whose live bytes fit the device
// without a plan and others at even distances among the batches of longer ones.
// Breaks come on top. Throws InputError if there are so many that `most_plans` are too few.
LengthSwitches FindSwitches(const LengthProblem& problem,
                            const std::vector<int64_t>& lengths,
                            int64_t most_plans, int64_t device_bytes);

// The cheapest buckets from the shortest length to the longest, and their mean
// recomputation over all batches.
struct BucketPath {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  double ms = kNone;  // kNone: there is no path
  std::vector<Bucket> buckets = {};
};

class BucketProblem;

// The best plans of buckets, each solved once for a budget.
class BucketPlans {
 public:
  // Refers to the problem and the clock.
  BucketPlans(const LengthProblem& problem, const PlanOptions& options,
              const SegmentChoice& segments, const solver::LimitClock& clock);
  ~BucketPlans();

  // Returns the best plan of a bucket for a budget, with means over its batches. Takes a
  // quarter of the remaining time at most.
  const Plan& PlanOf(const Bucket& bucket, int64_t budget_bytes);

  // Returns the path through at most so many buckets whose plans recompute least or, with
  // `has_bounds`, whose plans' bounds are least: then no path recomputes less.
  BucketPath PathThrough(const LengthSwitches& switches, int64_t most_buckets,
                         int64_t budget_bytes, bool has_bounds);

 private:
  double MsOf(const Bucket& bucket, int64_t budget_bytes, bool has_bounds);

  const LengthProblem& problem_;
  PlanOptions options_;
  SegmentChoice segments_;
  const solver::LimitClock& clock_;
  std::map<Bucket, std::unique_ptr<BucketProblem>> problems_;
  std::map<std::pair<Bucket, int64_t>, Plan> plans_;
};

}  // namespace acplan::problems
