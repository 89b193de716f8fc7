#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/offload/movables.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/problem/unit_policies.h"

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

  // Saves, in all units of one class at once, one more group, one less, or one in place of
  // another, as long as the best such change makes the best plan cheaper.
  void ImproveAlike();

  const std::optional<OffloadPlan>& best() const { return best_; }

  // Returns the cost of the best plan; infinity if there is none.
  double CostMs() const {
    return best_ ? best_->CostMs() : std::numeric_limits<double>::infinity();
  }

 private:
  // Makes the units, some of their results offloaded, the best plan if they are
  // better than it. Returns whether they are.
  bool Try(const std::vector<graph::CheckpointedModule>& units);
  // Does so for units that offload what they do.
  bool TryOffloaded(std::vector<graph::CheckpointedModule> units);

  using Modules = std::vector<graph::ModuleId>;

  // Returns the units of the best plan that are of one class, for each class of two or more.
  std::vector<Modules> AlikeUnits() const;
  // Tries units alike that all save one more group, one less, or one in place of another.
  // Returns whether the best plan has become cheaper.
  bool ImproveTogether(const Modules& modules);
  // Tries one unit that saves one more group, or one less.
  bool ImproveUnit(graph::ModuleId module);

  TreeNodeId NodeOf(graph::ModuleId module) const;
  // Returns what the best plan does with each group of a unit; nothing if it has none.
  GroupUses UsesOf(graph::ModuleId module) const;
  // Returns whether a unit with these uses may save a group that it does not, or not save
  // one that it does.
  bool IsOpen(graph::ModuleId module, graph::GroupId group,
              const GroupUses& uses) const;
  // Returns whether nothing can or may become better.
  bool IsDone() const;

  // Returns a time that the step waits at least, whatever moves: the bytes that it may not
  // keep at a moment have been sent before.
  double LeastStallMs(const graph::Simulation& saved_run) const;

  OffloadSearchQuestion question_;
  int64_t rounding_bytes_ =
      0;  // that allocations may have on top of what moves
  std::optional<OffloadPlan> best_;
};

}  // namespace acplan::problems
