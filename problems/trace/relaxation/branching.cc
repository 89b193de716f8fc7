#include "problems/trace/relaxation/branching.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "problems/plan/trace_memory.h"
#include "problems/trace/problem/unit_policies.h"
#include "problems/trace/relaxation/miscounted.h"
#include "solver/stop.h"

// How a part is split.
//
// A plan of a part's relaxation is no answer for one of four reasons, each with a
// decision that mends it in one half or the other. In this order:
// 1. It has more units than allowed, as the relaxation counts them by call where a
//    module has several: one of them is a unit or not.
// 2. Only some calls of a module are units, or their groups differ: the module is a
//    unit or not; one of these groups is recomputed or saved.
// 3. It breaks the budget in the forward or the backward pass because storages are
//    live there but for their witnesses: the one of which most is missing is live
//    at that time or not. If it is, its witness is the decision from then on
//    (kDecided), and the relaxation counts it whatever the plan; if not, nothing
//    may hold it (decisions.h).
// 4. It breaks the budget while a unit runs again: a group that runs there, or of
//    which most is saved for later, is recomputed or saved.
// Where none of this is open, any unit will do that is open, and any group of a unit
// that is open and that the unit saves or runs again, the last first.
//
// A group is decided after its module is, since it makes no difference where that is no
// unit. Nor does it where nothing needs what the group makes: what is needed follows
// from the groups that are needed, from the last operator to the first, so that two
// policies that agree on all groups that one of them saves or runs again do the same.
//
// Why the search ends. A decision is taken only where the part has not settled it,
// and there are finitely many. When no unit is open, and no group that makes a
// difference, the part has one plan, OnlyPlanOf.

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;

namespace {

// The most storages that a split looks at, summed over the times.
constexpr int64_t kMostCounted = 20'000'000;

TreeNodeId ModuleNodeOf(const TraceProblem& problem, const ChosenUnit& unit) {
  return problem.candidates[problem.candidate_at[NodeOf(unit)]].module_node;
}

std::optional<Decision> UndecidedUnit(const TraceProblem& problem,
                                      const TracePart& part,
                                      const RelaxedPlan& plan) {
  for (const ChosenUnit& unit : plan.units) {
    const Decision is_unit = UnitDecision(ModuleNodeOf(problem, unit));
    if (!part.IsDecided(is_unit)) return is_unit;
  }
  return std::nullopt;
}

// One of the groups of two calls of a module that are treated differently.
std::optional<Decision> FirstDifference(const TracePart& part,
                                        TreeNodeId module_node,
                                        const GroupUses& first,
                                        const GroupUses& other) {
  for (const graph::GroupId g : first.ids()) {
    const Decision group = GroupDecision(module_node, g);
    const bool differs = first[g] != other[g] && first[g] != GroupUse::kNone &&
                         other[g] != GroupUse::kNone;
    if (differs && !part.IsDecided(group)) return group;
  }
  return std::nullopt;
}

// Calls of one module of which only some are units, or which differ.
std::optional<Decision> FirstInconsistency(const TraceProblem& problem,
                                           const TracePart& part,
                                           const RelaxedPlan& plan) {
  if (!problem.has_repeated_calls) return std::nullopt;
  std::map<TreeNodeId, std::vector<const ChosenUnit*>> units_of;
  for (const ChosenUnit& unit : plan.units) {
    units_of[ModuleNodeOf(problem, unit)].push_back(&unit);
  }
  graph::IndexedVector<TreeNodeId, int64_t> calls_of(problem.groups.size(), 0);
  for (const CandidateCall& candidate : problem.candidates) {
    ++calls_of[candidate.module_node];
  }
  for (const auto& [module, units] : units_of) {
    const Decision is_unit = UnitDecision(module);
    if (calls_of[module] > std::ssize(units) && !part.IsDecided(is_unit))
      return is_unit;
    std::vector<GroupUses> uses;
    for (const ChosenUnit* unit : units) {
      uses.push_back(UsesOfUnit(plan.relaxation, *unit));
    }
    for (size_t k = 0; k < uses.size(); ++k) {
      for (size_t other = k + 1; other < uses.size(); ++other) {
        if (auto group = FirstDifference(part, module, uses[k], uses[other])) {
          return group;
        }
      }
    }
  }
  return std::nullopt;
}

// Returns for every record that the plan exceeds the time at which it exceeds it most;
// the worst last. On large steps it returns only the worst times.
std::vector<graph::Time> ViolatedTimes(const TraceProblem& problem,
                                       const Simulation& use,
                                       int64_t budget_bytes) {
  std::map<WalkNodeId, std::pair<int64_t, graph::Time>> worst;  // of a record
  const auto times = TimesOf(use);
  for (const graph::StepId k : use.steps.ids()) {
    if (use.steps[k].redone != graph::kNone ||
        use.live_bytes[k] <= budget_bytes) {
      continue;
    }
    auto& [bytes, time] = worst[problem.record_of[times[k]]];
    if (use.live_bytes[k] <= bytes) continue;
    bytes = use.live_bytes[k];
    time = times[k];
  }
  std::vector<std::pair<int64_t, graph::Time>> sorted;
  for (const auto& [record, excess] : worst) sorted.push_back(excess);
  std::ranges::sort(sorted);
  std::vector<graph::Time> result;
  for (const auto& [bytes, time] : sorted) result.push_back(time);
  const auto most = std::max<int64_t>(
      1, kMostCounted / std::max<int64_t>(1, std::ssize(problem.held_until)));
  if (std::ssize(result) > most) {
    result.erase(result.begin(), result.end() - most);
  }
  return result;
}

// The storage of which most is missing where the plan breaks the budget, and
// witnesses that count all that is missing.
Split Miscount(const TraceProblem& problem, const TracePart& part,
               const RelaxedPlan& plan, const Witnesses& witnesses,
               int64_t budget_bytes) {
  Split split{.decision = {}, .next = witnesses};
  int64_t largest = 0;
  // The worst time comes last, so it has the last word on witnesses.
  for (const graph::Time time :
       ViolatedTimes(problem, *plan.use, budget_bytes)) {
    solver::StopIfDue();
    for (Miscounted& m :
         FindMiscounted(problem, plan.modules, time, witnesses)) {
      const std::optional<graph::Time> until = part.LiveUntil(m.storage);
      if (until && *until >= time) {
        split.next[m.storage] = {DecidedWitness(*until)};
      } else {
        split.next[m.storage] = std::move(m.witnesses);
      }
      const Decision is_live = LifeDecision(m.storage, time);
      if (m.is_copy || m.is_gone || part.IsDecided(is_live)) continue;
      if (split.decision && split.decision->storage() == m.storage) {
        split.decision->detail = std::max(split.decision->detail, time);
      }
      if (m.bytes <= largest) continue;
      largest = m.bytes;
      split.decision = is_live;
    }
  }
  return split;
}

bool IsOpenGroup(const TraceProblem& problem, const TracePart& part,
                 const Decision& group) {
  return problem.is_choice[group.module_node()][group.group()] &&
         !part.IsDecided(group);
}

// The open group of which most is saved for after a time in a call that runs
// again.
std::optional<Decision> MostSavedForLater(const TraceProblem& problem,
                                          const TracePart& part,
                                          const RelaxedPlan& plan,
                                          const Simulation::Step& step) {
  const graph::TraceCall& call = problem.trace->calls[step.redone];
  const TreeNodeId module_node =
      problem.candidates[problem.candidate_of[step.redone]].module_node;
  const std::vector<graph::GroupId>& group_of =
      problem.groups[module_node].group_of;
  const auto unit =
      std::ranges::find(plan.modules, call.module, &CheckpointedModule::module);
  const GroupUses uses = UsesOfGroups(problem, module_node, *unit);
  std::map<graph::GroupId, int64_t> saved_bytes;
  std::optional<Decision> best;
  for (const graph::OperatorId later :
       graph::OperatorsIn(EndOf(step.op), call.end)) {
    const graph::GroupId g = group_of[call.PlaceOf(later)];
    if (uses[g] != GroupUse::kSaved) continue;
    const Decision group = GroupDecision(module_node, g);
    if (!IsOpenGroup(problem, part, group)) continue;
    for (const graph::StorageId s : problem.trace->operators[later].creates) {
      saved_bytes[g] += problem.trace->storages[s].bytes;
    }
    if (!best || saved_bytes[g] > saved_bytes[best->group()]) best = group;
  }
  return best;
}

// A group of a unit that breaks the budget while it runs again: one that runs
// there, or else the one of which most is saved for later.
std::optional<Decision> MissedInRecomputation(const TraceProblem& problem,
                                              const TracePart& part,
                                              const RelaxedPlan& plan,
                                              int64_t budget_bytes) {
  int64_t worst = budget_bytes;
  std::optional<Decision> decision;
  const Simulation& use = *plan.use;
  for (const graph::StepId k : use.steps.ids()) {
    const Simulation::Step& step = use.steps[k];
    if (step.redone == graph::kNone || use.live_bytes[k] <= worst) continue;
    const graph::TraceCall& call = problem.trace->calls[step.redone];
    if (StartOf(step.op) < call.start) continue;  // a cast from before the call
    const CandidateCall& candidate =
        problem.candidates[problem.candidate_of[step.redone]];
    if (candidate.is_whole) continue;
    std::optional<Decision> next = GroupDecision(
        candidate.module_node,
        problem.groups[candidate.module_node].group_of[call.PlaceOf(step.op)]);
    if (!IsOpenGroup(problem, part, *next)) {
      next = MostSavedForLater(problem, part, plan, step);
    }
    if (!next) continue;
    worst = use.live_bytes[k];
    decision = next;
  }
  return decision;
}

// An open group that a policy of a unit saves or runs again; others make no
// difference.
std::optional<Decision> UndecidedGroup(const TraceProblem& problem,
                                       const TracePart& part,
                                       TreeNodeId module_node,
                                       const CheckpointedModule& unit) {
  const GroupUses uses = UsesOfGroups(problem, module_node, unit);
  for (const graph::GroupId g : std::views::reverse(uses.ids())) {
    const Decision group = GroupDecision(module_node, g);
    if (uses[g] != GroupUse::kNone && IsOpenGroup(problem, part, group)) {
      return group;
    }
  }
  return std::nullopt;
}

// The unit that saves what the part or a rule says, and no other group.
CheckpointedModule UnitOfPart(const TraceProblem& problem,
                              const TracePart& part, TreeNodeId module_node) {
  GroupFlags is_saved;
  for (const graph::OperatorGroup& group : problem.groups[module_node].groups) {
    is_saved.push_back(group.rule == graph::GroupRule::kSave);
  }
  for (const Decision& d : part.decisions) {
    if (d.kind == Decision::Kind::kGroup && d.module_node() == module_node) {
      is_saved[d.group()] = !d.is_so;
    }
  }
  return UnitThatSaves(problem, module_node, is_saved);
}

// Returns the modules with a call inside or around a call of one of these.
std::set<TreeNodeId> ModulesExcludedBy(const TraceProblem& problem,
                                       const std::set<TreeNodeId>& units) {
  std::set<TreeNodeId> excluded;
  for (const CandidateCall& candidate : problem.candidates) {
    for (CandidateId a = candidate.parent; a != graph::kNone;
         a = problem.candidates[a].parent) {
      const TreeNodeId parent = problem.candidates[a].module_node;
      if (units.contains(parent)) excluded.insert(candidate.module_node);
      if (units.contains(candidate.module_node)) excluded.insert(parent);
    }
  }
  return excluded;
}

// Anything that the part leaves open: first of the plan's units, then of
// modules that are none.
std::optional<Decision> AnyOpen(const TraceProblem& problem,
                                const TracePart& part,
                                const RelaxedPlan& plan) {
  if (auto unit = UndecidedUnit(problem, part, plan)) return unit;
  for (const ChosenUnit& chosen_unit : plan.units) {
    const TreeNodeId node = ModuleNodeOf(problem, chosen_unit);
    const graph::ModuleId module =
        problem.trace
            ->calls[problem
                        .candidates[problem.candidate_at[NodeOf(chosen_unit)]]
                        .call]
            .module;
    const auto unit =
        std::ranges::find(plan.modules, module, &CheckpointedModule::module);
    if (auto group = UndecidedGroup(problem, part, node, *unit)) return group;
  }
  std::set<TreeNodeId> units;
  for (const Decision& d : part.decisions) {
    if (d.kind == Decision::Kind::kUnit && d.is_so)
      units.insert(d.module_node());
  }
  const std::set<TreeNodeId> excluded = ModulesExcludedBy(problem, units);
  for (const CandidateCall& candidate : problem.candidates) {
    const TreeNodeId module = candidate.module_node;
    if (units.contains(module)) {
      if (auto group = UndecidedGroup(problem, part, module,
                                      UnitOfPart(problem, part, module))) {
        return group;
      }
      continue;
    }
    const Decision is_unit = UnitDecision(module);
    if (!excluded.contains(module) && !part.IsDecided(is_unit)) return is_unit;
  }
  return std::nullopt;
}

// The part's plans for which the decision is so, or is not.
TracePart HalfOf(const TracePart& part, Decision decision, bool is_so) {
  TracePart half = part;
  decision.is_so = is_so;
  half.decisions.push_back(decision);
  if (decision.kind != Decision::Kind::kLife || !is_so) return half;
  const std::vector<Witness> witnesses = {DecidedWitness(decision.time())};
  const auto place = std::ranges::lower_bound(
      half.next, decision.storage(), {},
      [](const auto& changed) { return changed.first; });
  if (place != half.next.end() && place->first == decision.storage()) {
    place->second = witnesses;
  } else {
    half.next.insert(place, {decision.storage(), witnesses});
  }
  return half;
}

}  // namespace

void SearchParts::AddHalves(const TracePart& part, const Decision& decision) {
  Add(HalfOf(part, decision, true));
  Add(HalfOf(part, decision, false));
}

TracePart SearchParts::TakeLeast() {
  TracePart part = std::move(open_.extract(open_.begin()).mapped());
  bound_at_hand_ = part.bound;
  return part;
}

void SearchParts::LetGo() {
  bound_at_hand_ = std::numeric_limits<double>::infinity();
}

void SearchParts::Close(double bound) {
  closed_bound_ = std::min(closed_bound_, bound);
}

double SearchParts::Bound() const {
  const double bound = std::min(closed_bound_, bound_at_hand_);
  return open_.empty() ? bound : std::min(bound, open_.begin()->first);
}

bool TracePart::IsDecided(const Decision& decision) const {
  return std::ranges::any_of(
      decisions, [&](const Decision& d) { return d.Settles(decision); });
}

std::optional<graph::Time> TracePart::LiveUntil(
    graph::StorageId storage) const {
  std::optional<graph::Time> until;
  for (const Decision& d : decisions) {
    if (d.kind == Decision::Kind::kLife && d.storage() == storage && d.is_so) {
      until = std::max(until.value_or(d.time()), d.time());
    }
  }
  return until;
}

Split SplitOn(const TraceProblem& problem, const TracePart& part,
              const RelaxedPlan& plan, const Witnesses& witnesses,
              int64_t budget_bytes) {
  std::optional<Decision> decision;
  if (!KeepsMaxUnits(problem, plan.modules)) {
    decision = UndecidedUnit(problem, part, plan);
  }
  if (!decision) decision = FirstInconsistency(problem, part, plan);
  Split split;
  if (!plan.use) {
    split.next = witnesses;
  } else {
    // Witnesses are found in any case.
    split = Miscount(problem, part, plan, witnesses, budget_bytes);
    if (!decision) decision = split.decision;
    if (!decision) {
      decision = MissedInRecomputation(problem, part, plan, budget_bytes);
    }
  }
  split.decision = decision ? decision : AnyOpen(problem, part, plan);
  if (split.decision && split.decision->kind == Decision::Kind::kGroup) {
    const Decision is_unit = UnitDecision(split.decision->module_node());
    if (!part.IsDecided(is_unit)) split.decision = is_unit;
  }
  return split;
}

std::vector<CheckpointedModule> OnlyPlanOf(const TraceProblem& problem,
                                           const TracePart& part) {
  std::set<TreeNodeId> units;
  for (const Decision& d : part.decisions) {
    if (d.kind == Decision::Kind::kUnit && d.is_so)
      units.insert(d.module_node());
  }
  std::vector<CheckpointedModule> modules;
  for (const TreeNodeId node : units) {
    modules.push_back(UnitOfPart(problem, part, node));
  }
  return modules;
}

ChangedWitnesses ChangesOf(const Witnesses& first, const Witnesses& witnesses) {
  ChangedWitnesses changes;
  for (const graph::StorageId s : first.ids()) {
    if (witnesses[s] != first[s]) changes.emplace_back(s, witnesses[s]);
  }
  return changes;
}

Witnesses Blend(const Witnesses& first, const ChangedWitnesses& current,
                const ChangedWitnesses& target, double weight) {
  Witnesses blended = first;
  for (const auto& [s, witnesses] : current) blended[s] = witnesses;
  Witnesses targets = first;
  for (const auto& [s, witnesses] : target) targets[s] = witnesses;
  for (const graph::StorageId s : first.ids()) {
    if (blended[s] == targets[s]) continue;
    blended[s] = weight == 1
                     ? std::move(targets[s])
                     : Blended(std::move(blended[s]), targets[s], weight);
  }
  return blended;
}

bool KeepsMaxUnits(const TraceProblem& problem,
                   const std::vector<CheckpointedModule>& modules) {
  const std::optional<int>& limit = problem.forest.max_units;
  return !limit || std::ssize(modules) <= *limit;
}

}  // namespace acplan::problems
