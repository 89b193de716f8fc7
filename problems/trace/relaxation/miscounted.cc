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
  int32_t time;
  std::vector<const CheckpointedModule*> unit_of;  // a candidate; null: no unit

  bool IsUnitBetweenRuns(int c) const {
    return unit_of[c] != nullptr && IsBetweenRuns(problem, c, time);
  }

  bool HasFrame(int c) const {
    return unit_of[c] != nullptr && HoldsArguments(problem, c, time);
  }

  // `c` is a unit.
  bool Saves(int c, int32_t storage) const {
    return KeepsResult(problem, c, *unit_of[c], storage);
  }

  // The unit that a tensor was saved in, or -1.
  int UnitAround(const SavedTensor& saved) const {
    int c = CandidateAround(problem, saved);
    while (c >= 0 && unit_of[c] == nullptr) c = problem.candidates[c].parent;
    return c;
  }
};

PlanAtTime AtTime(const TraceProblem& problem,
                  const std::vector<CheckpointedModule>& modules,
                  int32_t time) {
  std::vector<const CheckpointedModule*> of_module(
      problem.trace->modules.size(), nullptr);
  for (const CheckpointedModule& unit : modules) of_module[unit.module] = &unit;
  PlanAtTime plan{.problem = problem, .time = time, .unit_of = {}};
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    plan.unit_of.push_back(of_module[CallOf(problem, c).module]);
  }
  return plan;
}

// Returns whether the relaxation counts the witness.
bool IsCounted(const PlanAtTime& plan, int32_t storage,
               const Witness& witness) {
  const TraceProblem& problem = plan.problem;
  switch (witness.kind) {
    case Witness::Kind::kProgram:
      return problem.held[storage] > plan.time;
    case Witness::Kind::kDecided:
      return witness.index >= plan.time;
    case Witness::Kind::kSavedTensor: {
      const int32_t end = HoldsUntil(problem, storage, witness);
      const int c = plan.UnitAround(problem.trace->saved[witness.index]);
      return end > plan.time &&
             (c < 0 || !plan.IsUnitBetweenRuns(c) ||
              !Releases(problem, c, storage, end) || plan.Saves(c, storage));
    }
    case Witness::Kind::kArgument:
      return plan.HasFrame(witness.index);
    case Witness::Kind::kResult:
      return plan.IsUnitBetweenRuns(witness.index) &&
             plan.Saves(witness.index, storage);
  }
  return false;
}

double CountedShare(const PlanAtTime& plan, int32_t storage,
                    const std::vector<Witness>& witnesses) {
  double share = 0;
  for (const Witness& witness : witnesses) {
    share += IsCounted(plan, storage, witness) ? witness.share : 0;
  }
  return share;
}

// What units are counted to release of a storage that its witnesses have let go of.
double GoneShare(const PlanAtTime& plan, int32_t storage,
                 const std::vector<Witness>& witnesses) {
  double share = 0;
  for (const Witness& witness : witnesses) {
    if (witness.kind != Witness::Kind::kSavedTensor) continue;
    const int32_t end = HoldsUntil(plan.problem, storage, witness);
    if (end > plan.time) continue;
    const int c = plan.UnitAround(plan.problem.trace->saved[witness.index]);
    const bool is_released = c >= 0 && plan.IsUnitBetweenRuns(c) &&
                             Releases(plan.problem, c, storage, end) &&
                             !plan.Saves(c, storage);
    if (is_released) share += witness.share;
  }
  return share;
}

// The saved tensor outside of units that the fewest units keep from holding.
std::optional<int32_t> SavedOutsideOfUnits(const PlanAtTime& plan,
                                           int32_t storage) {
  const TraceProblem& problem = plan.problem;
  std::optional<int32_t> best;
  for (const int32_t k : problem.saved_of[storage]) {
    const SavedTensor& saved = problem.trace->saved[k];
    const bool holds = saved.packed <= plan.time &&
                       plan.UnitAround(saved) < 0 &&
                       HeldByAutogradUntil(saved) > plan.time;
    if (holds && (!best || CountReleasing(problem, k) <
                               CountReleasing(problem, *best))) {
      best = k;
    }
  }
  return best;
}

std::vector<Witness> UnitsThatHold(const PlanAtTime& plan, int32_t storage) {
  std::vector<Witness> holders;
  for (const int c : plan.problem.makers_of[storage]) {
    if (plan.IsUnitBetweenRuns(c) && plan.Saves(c, storage)) {
      holders.push_back({.kind = Witness::Kind::kResult, .index = c});
    }
  }
  for (const int c : plan.problem.frames_of[storage]) {
    if (plan.HasFrame(c)) holders = WithFrame(std::move(holders), c);
  }
  return holders;
}

// A saved tensor that a unit made again.
std::optional<int32_t> SavedAgain(const PlanAtTime& plan, int32_t storage) {
  const TraceProblem& problem = plan.problem;
  for (const int32_t k : problem.saved_of[storage]) {
    const SavedTensor& saved = problem.trace->saved[k];
    const int c = plan.UnitAround(saved);
    if (c >= 0 && problem.candidates[c].first_request <= plan.time &&
        CopyHoldsUntil(problem, saved) > plan.time) {
      return k;
    }
  }
  return std::nullopt;
}

// Who holds a storage in the plan; nothing where it is not live.
std::optional<Miscounted> HoldersIn(const PlanAtTime& plan, int32_t storage) {
  using enum Witness::Kind;
  Miscounted found{.storage = storage};
  if (plan.problem.held[storage] > plan.time) {
    found.witnesses = {{.kind = kProgram}};
    return found;
  }
  if (const auto saved = SavedOutsideOfUnits(plan, storage)) {
    found.witnesses = {{.kind = kSavedTensor, .index = *saved}};
    return found;
  }
  std::vector<Witness> holders = UnitsThatHold(plan, storage);
  if (!holders.empty()) {
    found.witnesses = WithEqualShares(plan.problem, std::move(holders));
    return found;
  }
  if (const auto saved = SavedAgain(plan, storage)) {
    found.witnesses = {{.kind = kSavedTensor, .index = *saved}};
    found.is_copy = true;
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Miscounted> FindMiscounted(
    const TraceProblem& problem, const std::vector<CheckpointedModule>& modules,
    int32_t time, const Witnesses& witnesses) {
  const graph::Trace& trace = *problem.trace;
  const PlanAtTime plan = AtTime(problem, modules, time);
  std::vector<Miscounted> found;
  for (int32_t s = 0; s < std::ssize(witnesses); ++s) {
    if (trace.storages[s].born > time) continue;
    const auto bytes = static_cast<double>(AllocatedBytesOf(trace, s));
    const auto missing =
        static_cast<int64_t>((1 - CountedShare(plan, s, witnesses[s])) * bytes);
    if (missing < graph::kAllocationUnit / 2) continue;
    std::optional<Miscounted> miscounted = HoldersIn(plan, s);
    if (miscounted) {
      miscounted->bytes = missing;
      found.push_back(std::move(*miscounted));
      continue;
    }
    const auto gone =
        static_cast<int64_t>(GoneShare(plan, s, witnesses[s]) * bytes);
    if (gone < graph::kAllocationUnit / 2) continue;
    found.push_back({.storage = s,
                     .bytes = gone,
                     .witnesses = {{.kind = Witness::Kind::kProgram}},
                     .is_gone = true});
  }
  return found;
}

}  // namespace acplan::problems
