#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/offload/movables.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Looks for plans on a trace that offload (graph/trace/offload.h) within a budget
// and cost little: what runs again, and what the step waits for the link
// (graph/trace/link_time.h).
//
// It starts from plans that do not offload and may break the budget: what they
// keep is offloaded until they keep it (movables.h). What it finds is simulated;
// that nothing costs less is proven only where the cost is 0.

struct OffloadPlan {
  double CostMs() const { return use.recompute_ms + stall_ms; }

  std::vector<graph::CheckpointedModule> modules = {};
  graph::Simulation use = {};  // of a rank
  double stall_ms = 0;
};

struct OffloadSearchQuestion {
  const TraceProblem& problem;
  int64_t budget_bytes = 0;
  LinkLimits limits = {};
  std::optional<int> max_units = {};
  std::function<bool()> is_stopped;
};

// The best plan of those that it has tried. Refers to what the question does.
class OffloadSearch {
 public:
  explicit OffloadSearch(OffloadSearchQuestion question)
      : question_(std::move(question)) {}

  // Tries units that offload nothing, as they are and with more units that keep
  // what they can (cover_units.h).
  void Start(const std::vector<graph::CheckpointedModule>& units);

  // Saves one group more of a unit, or one less, as long as that makes the best
  // plan cheaper.
  void Improve();

  const std::optional<OffloadPlan>& best() const { return best_; }

  // Infinity where nothing is found.
  double CostMs() const {
    return best_ ? best_->CostMs() : std::numeric_limits<double>::infinity();
  }

 private:
  // Returns whether the units, with what of them is offloaded, are better than
  // the best plan so far, which they then are.
  bool Try(const std::vector<graph::CheckpointedModule>& units);
  bool ImproveUnit(graph::ModuleId module);

  OffloadSearchQuestion question_;
  std::optional<OffloadPlan> best_;
};

}  // namespace acplan::problems
