#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "problems/trace/trace_problem.h"

namespace acplan::problems {

// The plans of a trace problem, split again and again by decisions: what the
// searches of trace_planner.h and trace_least_budget.h have in common.

// Witnesses of the storages, ascending, that have others than FirstWitnesses:
// parts are many, and these are few.
using ChangedWitnesses = std::vector<std::pair<int32_t, std::vector<Witness>>>;
ChangedWitnesses ChangesOf(const Witnesses& first, const Witnesses& witnesses);

// Witnesses of all storages, each between the two.
Witnesses Blend(const Witnesses& first, const ChangedWitnesses& of,
                const ChangedWitnesses& with, double weight);

// The plans that keep some decisions, and what is known of them.
struct TracePart {
  std::vector<Decision> decisions = {};
  // Those that gave the bound, and those to try next.
  ChangedWitnesses witnesses = {};
  ChangedWitnesses next = {};
  // No plan of the part recomputes less, in ms; or none needs less, in bytes.
  double bound = 0;

  bool IsDecided(const Decision& decision) const;
  // The latest time at which a storage is decided to be live.
  std::optional<int32_t> LiveUntil(int32_t storage) const;
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
  // Those of the plan's relaxation, but for storages that they miss.
  Witnesses next = {};
};

// What to split a part on, because of a plan of its relaxation that is no answer:
// it has too many units, its calls of one module differ, or it breaks the budget.
// Preferred is a decision that mends this; but as long as the part may have more
// than one plan, there is one. So a search that splits every part that is not
// settled ends, and then has seen all plans. `witnesses`: those of the relaxation.
Split SplitOn(const TraceProblem& problem, const TracePart& part,
              const RelaxedPlan& plan, const Witnesses& witnesses,
              int64_t budget_bytes);

// The part's plans for which the decision is so, or is not.
TracePart HalfOf(const TracePart& part, Decision decision, bool is_so);

// The only plan of a part that no decision splits.
std::vector<graph::CheckpointedModule> OnlyPlanOf(const TraceProblem& problem,
                                                  const TracePart& part);

// Whether a plan has no more units than may be.
bool KeepsMaxUnits(const TraceProblem& problem,
                   const std::vector<graph::CheckpointedModule>& modules);

}  // namespace acplan::problems
