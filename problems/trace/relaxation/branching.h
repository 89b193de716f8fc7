#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/decisions.h"
#include "problems/trace/relaxation/relaxation.h"
#include "problems/trace/relaxation/witnesses.h"

namespace acplan::problems {

// The plans of a trace problem, split again and again on decisions: what the
// searches of trace_search.h and trace_least_budget.h have in common.

// Witnesses of the storages, ascending, that have others than FirstWitnesses:
// parts are many, and these are few.
using ChangedWitnesses =
    std::vector<std::pair<graph::StorageId, std::vector<Witness>>>;
// Returns the witnesses that differ from the first ones.
ChangedWitnesses ChangesOf(const Witnesses& first, const Witnesses& witnesses);

// Returns witnesses of all storages, each between the current and the target ones.
Witnesses Blend(const Witnesses& first, const ChangedWitnesses& current,
                const ChangedWitnesses& target, double weight);

// The plans that keep some decisions, and what is known of them.
struct TracePart {
  std::vector<Decision> decisions = {};
  // The witnesses that gave the bound, and those to try next.
  ChangedWitnesses witnesses = {};
  ChangedWitnesses next = {};
  // No plan of the part recomputes less, in ms; or none needs less, in bytes.
  double bound = 0;

  bool IsDecided(const Decision& decision) const;
  // Returns the latest time at which a storage is decided to be live, if it is.
  std::optional<graph::Time> LiveUntil(graph::StorageId storage) const;
};

// The parts of a search: those that are open, and bounds of the others. At most one
// part is at hand, taken out to be settled or split.
class SearchParts {
 public:
  bool empty() const { return open_.empty(); }
  void Add(TracePart part) {
    const double bound = part.bound;
    open_.emplace(bound, std::move(part));
  }
  // Adds the plans of a part for which the decision is so, and the others.
  void AddHalves(const TracePart& part, const Decision& decision);
  // Takes the first open part with the least bound at hand.
  TracePart TakeLeast();
  // States a better bound for the part at hand.
  void SetBoundAtHand(double bound) { bound_at_hand_ = bound; }
  // Forgets the part at hand, which is settled or split: no plan that counts is in it.
  void LetGo();
  // Leaves the part at hand with this bound, settled or not.
  void Close(double bound);
  // Returns the least bound of all parts; infinity if there are none.
  double Bound() const;

 private:
  std::multimap<double, TracePart>
      open_;  // by bound; of equal ones the first first
  double closed_bound_ = std::numeric_limits<double>::infinity();
  double bound_at_hand_ = std::numeric_limits<double>::infinity();
};

// The plan of a part's relaxation.
struct RelaxedPlan {
  TraceRelaxation relaxation = {};
  std::vector<ChosenUnit> units = {};
  std::vector<graph::CheckpointedModule> modules = {};
  // Nothing where PyTorch refuses it.
  std::optional<graph::Simulation> use = {};
};

struct Split {
  std::optional<Decision> decision = {};
  // The witnesses of the plan's relaxation, but for storages that they miss.
  Witnesses next = {};
};

// Chooses what to split a part on, because of a plan of its relaxation that is no
// answer: it has too many units, its calls of one module differ, or it breaks the budget.
// Preferred is a decision that mends this; but as long as the part may have more
// than one plan, there is one. So a search that splits every part that is not
// settled ends, and then has seen all plans. `witnesses`: those of the relaxation.
Split SplitOn(const TraceProblem& problem, const TracePart& part,
              const RelaxedPlan& plan, const Witnesses& witnesses,
              int64_t budget_bytes);

// Returns the only plan of a part that no decision splits.
std::vector<graph::CheckpointedModule> OnlyPlanOf(const TraceProblem& problem,
                                                  const TracePart& part);

// Returns whether a plan has no more units than it may have.
bool KeepsMaxUnits(const TraceProblem& problem,
                   const std::vector<graph::CheckpointedModule>& modules);

}  // namespace acplan::problems
