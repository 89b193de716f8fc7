#include "problems/trace/relaxation/miscounted.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "problems/trace/problem/holders.h"
#include "problems/trace/problem/unit_policies.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::SavedTensor;

namespace {

// A plan at a time of the step.
struct PlanAtTime {
  const TraceProblem& problem;
  graph::Time time;
  // Null: no unit.
  graph::IndexedVector<CandidateId, const CheckpointedModule*> unit_of;

  bool IsUnitBetweenRuns(CandidateId c) const {
    return unit_of[c] != nullptr && IsBetweenRuns(problem, c, time);
  }

  bool HasFrame(CandidateId c) const {
    return unit_of[c] != nullptr && HoldsArguments(problem, c, time);
  }

  // `c` is a unit.
  bool Saves(CandidateId c, graph::StorageId storage) const {
    return KeepsResult(problem, c, *unit_of[c], storage);
  }

  // Returns the unit that a tensor was saved in, if any.
  CandidateId UnitAround(const SavedTensor& saved) const {
    CandidateId c = CandidateAround(problem, saved);
    while (c != graph::kNone && unit_of[c] == nullptr)
      c = problem.candidates[c].parent;
    return c;
  }
};

PlanAtTime AtTime(const TraceProblem& problem,
                  const std::vector<CheckpointedModule>& modules,
                  graph::Time time) {
  graph::IndexedVector<graph::ModuleId, const CheckpointedModule*> unit_of(
      problem.trace->modules.size(), nullptr);
  for (const CheckpointedModule& unit : modules) unit_of[unit.module] = &unit;
  PlanAtTime plan{.problem = problem, .time = time, .unit_of = {}};
  for (const CandidateId c : problem.candidates.ids()) {
    plan.unit_of.push_back(unit_of[CallOf(problem, c).module]);
  }
  return plan;
}

// Returns whether the relaxation counts the witness.
bool IsCounted(const PlanAtTime& plan, graph::StorageId storage,
               const Witness& witness) {
  const TraceProblem& problem = plan.problem;
  switch (witness.kind) {
    case Witness::Kind::kProgram:
      return problem.held_until[storage] > plan.time;
    case Witness::Kind::kDecided:
      return witness.time() >= plan.time;
    case Witness::Kind::kSavedTensor: {
      const graph::Time end = HoldsUntil(problem, storage, witness);
      const CandidateId c =
          plan.UnitAround(problem.trace->saved[witness.saved()]);
      return end > plan.time &&
             (c == graph::kNone || !plan.IsUnitBetweenRuns(c) ||
              !Releases(problem, c, storage, end) || plan.Saves(c, storage));
    }
    case Witness::Kind::kArgument:
      return plan.HasFrame(witness.candidate());
    case Witness::Kind::kResult:
      return plan.IsUnitBetweenRuns(witness.candidate()) &&
             plan.Saves(witness.candidate(), storage);
  }
  return false;
}

double CountedShare(const PlanAtTime& plan, graph::StorageId storage,
                    const std::vector<Witness>& witnesses) {
  double share = 0;
  for (const Witness& witness : witnesses) {
    share += IsCounted(plan, storage, witness) ? witness.share : 0;
  }
  return share;
}

// Returns the share that units are counted to release of a storage that its witnesses
// have let go of.
double GoneShare(const PlanAtTime& plan, graph::StorageId storage,
                 const std::vector<Witness>& witnesses) {
  double share = 0;
  for (const Witness& witness : witnesses) {
    if (witness.kind != Witness::Kind::kSavedTensor) continue;
    const graph::Time end = HoldsUntil(plan.problem, storage, witness);
    if (end > plan.time) continue;
    const CandidateId c =
        plan.UnitAround(plan.problem.trace->saved[witness.saved()]);
    const bool is_released = c != graph::kNone && plan.IsUnitBetweenRuns(c) &&
                             Releases(plan.problem, c, storage, end) &&
                             !plan.Saves(c, storage);
    if (is_released) share += witness.share;
  }
  return share;
}

// The saved tensor outside of units that the fewest units keep from holding.
std::optional<graph::SavedId> SavedOutsideOfUnits(const PlanAtTime& plan,
                                                  graph::StorageId storage) {
  const TraceProblem& problem = plan.problem;
  std::optional<graph::SavedId> best;
  for (const graph::SavedId k : problem.saved_of[storage]) {
    const SavedTensor& saved = problem.trace->saved[k];
    const bool holds = saved.packed <= plan.time &&
                       plan.UnitAround(saved) == graph::kNone &&
                       HeldByAutogradUntil(saved) > plan.time;
    if (holds && (!best || CountReleasing(problem, k) <
                               CountReleasing(problem, *best))) {
      best = k;
    }
  }
  return best;
}

std::vector<Witness> UnitsThatHold(const PlanAtTime& plan,
                                   graph::StorageId storage) {
  std::vector<Witness> holders;
  for (const CandidateId c : plan.problem.makers_of[storage]) {
    if (plan.IsUnitBetweenRuns(c) && plan.Saves(c, storage)) {
      holders.push_back(ResultWitness(c));
    }
  }
  for (const CandidateId c : plan.problem.frames_of[storage]) {
    if (plan.HasFrame(c)) holders = WithFrame(std::move(holders), c);
  }
  return holders;
}

// A saved tensor that a unit made again.
std::optional<graph::SavedId> SavedAgain(const PlanAtTime& plan,
                                         graph::StorageId storage) {
  const TraceProblem& problem = plan.problem;
  for (const graph::SavedId k : problem.saved_of[storage]) {
    const SavedTensor& saved = problem.trace->saved[k];
    const CandidateId c = plan.UnitAround(saved);
    if (c != graph::kNone && problem.candidates[c].first_request <= plan.time &&
        CopyHoldsUntil(problem, saved) > plan.time) {
      return k;
    }
  }
  return std::nullopt;
}

// Returns the holders of a storage in the plan; nothing if it is not live.
std::optional<Miscounted> HoldersIn(const PlanAtTime& plan,
                                    graph::StorageId storage) {
  Miscounted miscounted{.storage = storage};
  if (plan.problem.held_until[storage] > plan.time) {
    miscounted.witnesses = {Witness()};
    return miscounted;
  }
  if (const auto saved = SavedOutsideOfUnits(plan, storage)) {
    miscounted.witnesses = {SavedWitness(*saved)};
    return miscounted;
  }
  std::vector<Witness> holders = UnitsThatHold(plan, storage);
  if (!holders.empty()) {
    miscounted.witnesses = WithEqualShares(plan.problem, std::move(holders));
    return miscounted;
  }
  if (const auto saved = SavedAgain(plan, storage)) {
    miscounted.witnesses = {SavedWitness(*saved)};
    miscounted.is_copy = true;
    return miscounted;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Miscounted> FindMiscounted(
    const TraceProblem& problem, const std::vector<CheckpointedModule>& modules,
    graph::Time time, const Witnesses& witnesses) {
  const graph::Trace& trace = *problem.trace;
  const PlanAtTime plan = AtTime(problem, modules, time);
  std::vector<Miscounted> list;
  for (const graph::StorageId s : witnesses.ids()) {
    if (StartOf(trace.storages[s].born) > time) continue;
    const auto bytes = static_cast<double>(AllocatedBytesOf(trace, s));
    const auto missing =
        static_cast<int64_t>((1 - CountedShare(plan, s, witnesses[s])) * bytes);
    if (missing < graph::kAllocationUnit / 2) continue;
    std::optional<Miscounted> miscounted = HoldersIn(plan, s);
    if (miscounted) {
      miscounted->bytes = missing;
      list.push_back(std::move(*miscounted));
      continue;
    }
    const auto gone_bytes =
        static_cast<int64_t>(GoneShare(plan, s, witnesses[s]) * bytes);
    if (gone_bytes < graph::kAllocationUnit / 2) continue;
    list.push_back({.storage = s,
                    .bytes = gone_bytes,
                    .witnesses = {Witness()},
                    .is_gone = true});
  }
  return list;
}

}  // namespace acplan::problems
