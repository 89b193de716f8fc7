#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/profile/sac_statistics.h"
#include "problems/language/changed_step.h"
#include "problems/language/trainer_policy.h"
#include "problems/offload/movables.h"
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
//   o_t in {0,1} they are kept in the host's memory instead; 0 without a link
// Model
//   minimise   w_c - sum over t of m_t (s_t + o_t) + wait(c, s, o)
//   subject to s_t + o_t <= 1
//              s_i <= s_j                       i implies j
//              the simulated peak of (c, s, o) <= B
//
// with wait(c, s, o) the time that the step waits for the link, w_c the recomputation of the choice if nothing is saved, and m_t what the tie
// spares. Where a unit stops does not depend on what it saves, so the objective is a sum.
//
// Excluded from every language are the policies that no checked plan has: those that save
// a view, save one of the operators that must be decided together and not the others
// (random ones of a unit), save a result that is written to in place later, or that
// PyTorch refuses.
struct NamedValue {
  std::string name;
  std::vector<std::string> patterns;  // of names with places
};

struct Language {
  // The choices beside that of no unit. kFirst stands for all lengths, kRange for all
  // ranges, kEvery for all periods, kClasses for all sets of classes of modules with children of which none is
  // inside another, kParts for all such sets of parts that are
  // predicted together, kRuns for all lengths above 1.
  std::vector<BlockKind> blocks = {BlockKind::kAll};
  // If true, no unit is a choice, too.
  bool may_have_no_unit = true;
  // Any set of names may be saved; if not, only one of `sets` or nothing.
  bool takes_names = false;
  std::vector<std::vector<std::string>> sets = {};  // shell patterns of names
  // The language has words for values that wait in the host's memory. If it does and there is
  // a link, each tie is saved, offloaded or neither.
  bool may_offload = false;
  std::optional<LinkLimits> link = {};
  // If there are any, what may be saved are these sets of names with places
  // (NameKind::kPlaces), each as a whole; takes_names is then set.
  std::vector<NamedValue> values = {};
  // Names, as shell patterns, that are saved wherever any name is.
  std::vector<std::string> always_saved = {};
  // Names, as shell patterns, that cannot be saved.
  std::vector<std::string> never_saved = {};
  // The same for models with LoRA: with modules called lora_A.
  std::vector<std::string> never_saved_with_lora = {};
  // A name stands for all whose qualified names contain its own.
  bool matches_parts = false;
  int32_t product_period = 1;
  bool counts_grouped = false;
  bool stops_early = true;
  // Units that run again draw the random numbers of the forward pass. If not, units with
  // random operators are no choices: gradients would be wrong.
  bool replays_random = true;

  NameKind names() const {
    return values.empty() ? NameKind::kOperators : NameKind::kPlaces;
  }
  // Returns the policy of a choice that saves nothing.
  TrainerPolicy Saving(BlockChoice choice) const {
    return {.blocks = std::move(choice),
            .names = names(),
            .product_period = product_period,
            .counts_grouped = counts_grouped,
            .stops_early = stops_early};
  }
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
  std::vector<UnitChoice> choices =
      {};  // the first is that of no unit, if it may be said
  std::vector<std::string> notes = {};  // choices that are left out, and why
  std::optional<LinkLimits> link = {};  // of the language
  // The steps of choices whose units are no modules of the trace.
  std::vector<std::pair<StepChange, std::shared_ptr<const ChangedStep>>>
      changed_steps = {};

  // Returns the step that has the units of a choice; null if that is the trace.
  std::shared_ptr<const ChangedStep> StepOf(const BlockChoice& choice) const;

  // Returns the problem and the blocks of the step that has the units of a choice.
  const PlanningProblem& ProblemOf(const BlockChoice& choice) const;
  const std::vector<graph::ModuleId>& BlocksIn(const BlockChoice& choice) const;

  const TraceProblem& TraceProblemOf(const BlockChoice& choice) const {
    return std::get<TraceProblem>(ProblemOf(choice).formulation);
  }
};

// Returns the names of the modules that a choice makes units.
std::vector<std::string> UnitNames(const RestrictedTrace& restriction,
                                   const BlockChoice& choice);

// Returns the units of a policy in the form of a plan: like UnitsOf, but each unit whose
// operators a plan decides has decisions, and operators in place on what is older than
// the unit, which every plan saves, are saved (they have no result of their own).
std::vector<graph::CheckpointedModule> PlannedUnitsOf(
    const RestrictedTrace& restriction, const TrainerPolicy& policy);

// Returns the policy of a choice that saves some of its ties, as flags, and offloads some
// (none if `offloads` is empty).
TrainerPolicy PolicyOf(
    const UnitChoice& choice,
    const graph::IndexedVector<TieId, graph::Flag>& saves,
    const graph::IndexedVector<TieId, graph::Flag>& offloads = {});

// Returns whether a model has modules called lora_A.
bool HasLora(const graph::Trace& trace);

// Restricts a problem of a trace that may not skip (PlanOptions::may_skip). `blocks`: see
// BlocksOf. Throws InputError if the trace has no blocks and the language needs some.
RestrictedTrace Restrict(const PlanningProblem& problem,
                         const Language& language,
                         std::vector<graph::ModuleId> blocks);

}  // namespace acplan::problems
