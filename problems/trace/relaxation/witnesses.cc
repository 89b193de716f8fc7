#include "problems/trace/relaxation/witnesses.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::HeldByAutogradUntil;
using graph::SavedTensor;

namespace {

// Returns when nothing holds a storage any more without units.
graph::Time EndWithoutUnits(const TraceProblem& problem,
                            graph::StorageId storage) {
  graph::Time end = problem.held_until[storage];
  for (const graph::SavedId k : problem.saved_of[storage]) {
    end = std::max(end, HeldByAutogradUntil(problem.trace->saved[k]));
  }
  return end;
}

bool IsOfCandidate(const Witness& witness) {
  return witness.kind == Witness::Kind::kArgument ||
         witness.kind == Witness::Kind::kResult;
}

// Returns the saved tensor that the fewest units keep from holding, of those that hold
// at the peak; of equals the one that holds longest. The program if there is none.
Witness SteadiestHolder(const TraceProblem& problem, graph::StorageId storage,
                        graph::Time peak) {
  Witness best;
  auto least = std::tuple(true, std::numeric_limits<int>::max(), 0);
  for (const graph::SavedId k : problem.saved_of[storage]) {
    const Witness witness = SavedWitness(k);
    const graph::Time end = HoldsUntil(problem, storage, witness);
    const auto rank = std::tuple(end <= peak, CountReleasing(problem, k), -end);
    if (rank >= least) continue;
    least = rank;
    best = witness;
  }
  return best;
}

// The calls that hold a storage at the peak if they are units.
std::vector<Witness> UnitHolders(const TraceProblem& problem,
                                 graph::StorageId storage, graph::Time peak) {
  std::vector<Witness> holders;
  for (const CandidateId c : problem.makers_of[storage]) {
    if (problem.candidates[c].first_request > peak) {
      holders.push_back(ResultWitness(c));
    }
  }
  for (const CandidateId c : problem.frames_of[storage]) {
    if (problem.candidates[c].frame_end > peak) {
      holders = WithFrame(std::move(holders), c);
    }
  }
  return holders;
}

}  // namespace

Witnesses FirstWitnesses(const TraceProblem& problem) {
  // Without units the steps are the operators.
  const graph::Time peak =
      std::max(IndexOf(SimulatedUse(problem, {})->peak_step), 0);
  Witnesses witnesses(problem.trace->storages.size());
  for (const graph::StorageId s : witnesses.ids()) {
    std::vector<Witness> holders;
    if (EndWithoutUnits(problem, s) <= peak) {
      holders = UnitHolders(problem, s, peak);
    }
    witnesses[s] = holders.empty()
                       ? std::vector{SteadiestHolder(problem, s, peak)}
                       : WithEqualShares(problem, std::move(holders));
  }
  return witnesses;
}

std::vector<Witness> Blended(std::vector<Witness> current,
                             const std::vector<Witness>& target,
                             double weight) {
  for (Witness& witness : current) witness.share *= 1 - weight;
  for (const Witness& witness : target) {
    const auto same = std::ranges::find_if(current, [&](const Witness& w) {
      return w.kind == witness.kind && w.index == witness.index;
    });
    if (same == current.end()) {
      current.push_back(witness);
      current.back().share *= weight;
    } else {
      same->share += weight * witness.share;
    }
  }
  return current;
}

graph::Time HoldsUntil(const TraceProblem& problem, graph::StorageId storage,
                       const Witness& witness) {
  if (witness.kind != Witness::Kind::kSavedTensor)
    return problem.held_until[storage];
  const SavedTensor& saved = problem.trace->saved[witness.saved()];
  return std::max(problem.held_until[storage],
                  CandidateAround(problem, saved) == graph::kNone
                      ? HeldByAutogradUntil(saved)
                      : CopyHoldsUntil(problem, saved));
}

bool HasWitnessInside(const TraceProblem& problem,
                      const std::vector<Witness>& witnesses,
                      const Witness& outer) {
  return IsOfCandidate(outer) &&
         std::ranges::any_of(witnesses, [&](const Witness& witness) {
           return IsOfCandidate(witness) &&
                  witness.candidate() > outer.candidate() &&
                  witness.candidate() <=
                      problem.candidates[outer.candidate()].last;
         });
}

std::vector<Witness> WithEqualShares(const TraceProblem& problem,
                                     std::vector<Witness> holders) {
  const auto at_once =
      std::ranges::count_if(holders, [&](const Witness& holder) {
        return !HasWitnessInside(problem, holders, holder);
      });
  for (Witness& holder : holders) {
    holder.share = 1.0 / static_cast<double>(at_once);
  }
  return holders;
}

std::vector<Witness> WithFrame(std::vector<Witness> holders,
                               CandidateId candidate) {
  if (std::ranges::find(holders, candidate, &Witness::candidate) ==
      holders.end()) {
    holders.push_back(ArgumentWitness(candidate));
  }
  return holders;
}

int CountReleasing(const TraceProblem& problem, graph::SavedId saved_id) {
  const SavedTensor& saved = problem.trace->saved[saved_id];
  int count = 0;
  for (CandidateId c = CandidateAround(problem, saved); c != graph::kNone;
       c = problem.candidates[c].parent) {
    count += IsArgument(problem, c, saved.storage) ? 0 : 1;
  }
  return count;
}

}  // namespace acplan::problems
