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

// Looks for plans on a trace that offload (graph/trace/offload.h) within a
// budget and cost little: the recomputation, plus the time that the step waits
// for the link (graph/trace/link_time.h).
//
// The search starts from plans that do not offload and may break the budget. It
// offloads their kept results until they meet the budget (movables.h), and
// simulates the outcome. A plan is proven cheapest only if its cost is 0.

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

// The best plan of those that it has tried. Refers to all that the question
// refers to.
class OffloadSearch {
 public:
  explicit OffloadSearch(OffloadSearchQuestion question);

  // Tries units that offload nothing, unchanged and together with more units
  // that keep all that they can (cover_units.h).
  void Start(const std::vector<graph::CheckpointedModule>& units);

  // Tries units that keep nothing and cover the step, and those of their parts.
  void StartFromCovers();

  // Saves one more group of a unit, or one less, as long as that makes the best
  // plan cheaper.
  void Improve();

  const std::optional<OffloadPlan>& best() const { return best_; }

  // Returns the cost of the best plan; infinity if there is none.
  double CostMs() const {
    return best_ ? best_->CostMs() : std::numeric_limits<double>::infinity();
  }

 private:
  // A choice of what moves begins with nothing or, if the units are those of the best plan
  // with another policy, with what that moves.
  enum class Choices { kAnew, kOfBest };

  // Makes the units, some of their results offloaded, the best plan if they are
  // better than it. Returns whether they are.
  bool Try(const std::vector<graph::CheckpointedModule>& units,
           Choices choices = Choices::kAnew);
  bool ImproveUnit(graph::ModuleId module);

  // Returns a time that the step waits at least, whatever moves: the bytes that it may not
  // keep at a moment have been sent before.
  double LeastStallMs(const graph::Simulation& saved_run) const;

  OffloadSearchQuestion question_;
  int64_t rounding_bytes_ =
      0;  // that allocations may have on top of what moves
  std::optional<OffloadPlan> best_;
};

}  // namespace acplan::problems
