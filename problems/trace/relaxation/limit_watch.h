#pragma once

#include <cstdint>

#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// The effort that the relaxations of a search took together.
struct SearchEffort {
  int64_t labels = 0;
  int64_t rows = 0;     // of the largest
  int64_t columns = 0;  // of the largest
  bool is_memory_full = false;
};

// Watches the limits of a search that solves many relaxations. Time counts from
// when it was made. Refers to the limits, which must outlive it.
class LimitWatch {
 public:
  explicit LimitWatch(const solver::SearchLimits& limits) : limits_(limits) {}

  const solver::SearchLimits& limits() const { return limits_; }
  const SearchEffort& effort() const { return effort_; }
  double Seconds() const { return stopwatch_.Seconds(); }

  void Count(const ModuleSolution& relaxed);

  // Returns what is left of time and labels; everything else is as given.
  solver::SearchLimits RemainingLimits() const;

  // Returns the limit that is reached, if any. `best`: infinity if there is no plan.
  solver::StoppedBy LimitReached(double best, double bound) const;

 private:
  const solver::SearchLimits& limits_;
  const solver::Stopwatch stopwatch_;
  SearchEffort effort_;
};

}  // namespace acplan::problems
