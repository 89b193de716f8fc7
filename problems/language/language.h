#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/profile/sac_statistics.h"
#include "problems/language/trainer_policy.h"
#include "problems/planner.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The policies that a trainer's configuration can say, as a restriction of a trace.
//
// Data
//   The units that it can choose, as a list of choices (none, all blocks, the first n,
//   ...); for each the ties t, sets of operators that it saves together, by name
//   everywhere; the names that it cannot save.
// Variables
//   c            the choice of units
//   s_t in {0,1} the operators of tie t are saved in every unit
// Model
//   minimise   w_c - sum over t of m_t s_t
//   subject to s_i <= s_j                       i implies j
//              the simulated peak of (c, s) <= B
//
// with w_c the recomputation of the choice if nothing is saved, and m_t what the tie
// spares. Where a unit stops does not depend on what it saves, so the objective is a sum.
//
// Excluded from every language are the policies that no checked plan has: those that save
// a view, save one of the operators that must be decided together and not the others
// (random ones of a unit), save a result that is written to in place later, or that
// PyTorch refuses.
struct Language {
  // The choices beside that of no unit. kFirst stands for all lengths, kEvery for all
  // periods, kClasses for all sets of classes of modules with children of which none is
  // inside another.
  std::vector<BlockKind> blocks = {BlockKind::kAll};
  // Any set of names may be saved; if not, only one of `sets` or nothing.
  bool takes_names = false;
  std::vector<std::vector<std::string>> sets = {};  // shell patterns of names
  // Names, as shell patterns, that are saved wherever any name is.
  std::vector<std::string> always_saved = {};
  // Names, as shell patterns, that cannot be saved.
  std::vector<std::string> never_saved = {};
  // The same for models with LoRA: with modules called lora_A.
  std::vector<std::string> never_saved_with_lora = {};
  // A name stands for all whose qualified names contain its own.
  bool matches_parts = false;
  int32_t product_period = 1;
  bool stops_early = true;
};

struct OperatorTie {
  std::vector<std::string> names;  // ascending
  double ms = 0;                   // the recomputation that saving it spares
};

enum class TieId : int32_t {};  // in UnitChoice::ties
using TieList = graph::IndexedVector<TieId, OperatorTie>;

// A choice of units, and what remains to decide.
struct UnitChoice {
  TrainerPolicy policy;  // what it saves if it saves none of the ties
  TieList ties = {};     // in descending order of ms
  std::vector<std::pair<TieId, TieId>> implications = {};
  double whole_ms = 0;  // the recomputation of `policy`
};

// A language on a trace. Refers to the problem, which must outlive it.
struct RestrictedTrace {
  const PlanningProblem* problem = nullptr;
  std::vector<graph::ModuleId> blocks = {};
  std::vector<UnitChoice> choices = {};  // the first is that of no unit
  std::vector<std::string> notes = {};   // choices that are left out, and why

  const TraceProblem& trace_problem() const {
    return std::get<TraceProblem>(problem->formulation);
  }
};

// Returns the units of a policy in the form of a plan: like UnitsOf, but each unit whose
// operators a plan decides has decisions, and operators in place on what is older than
// the unit, which every plan saves, are saved (they have no result of their own).
std::vector<graph::CheckpointedModule> PlannedUnitsOf(
    const RestrictedTrace& restriction, const TrainerPolicy& policy);

// Returns the policy of a choice that saves some of its ties, as flags.
TrainerPolicy PolicyOf(const UnitChoice& choice,
                       const graph::IndexedVector<TieId, graph::Flag>& saves);

// Returns whether a model has modules called lora_A.
bool HasLora(const graph::Trace& trace);

// Restricts a problem of a trace that may not skip (PlanOptions::may_skip). `blocks`: see
// BlocksOf. Throws InputError if the trace has no blocks and the language needs some.
RestrictedTrace Restrict(const PlanningProblem& problem,
                         const Language& language,
                         std::vector<graph::ModuleId> blocks);

}  // namespace acplan::problems
