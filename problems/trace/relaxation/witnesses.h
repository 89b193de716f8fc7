#pragma once

#include <cstdint>
#include <vector>

#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Witnesses make the simulated bytes a sum over units.
//
// Idea. A storage is live as long as any of its holders holds it, so its bytes
// are a maximum over holders. Let one of them, its witness, stand for all of
// them: the bytes that witnesses hold are a sum, and no more than what is live.
// The holders, at a time t, "before" being said of a unit call that has ended by
// t and runs again after t:
// - A tensor that autograd saved: it holds until backward lets go of it, but
//   where a unit that it was saved in is before t and the storage is no argument
//   of that unit (frames hold those). If the unit made the storage, its policy may
//   save it.
// - An argument of a call: its frame holds where the call is a unit that is
//   before t, or runs again.
// - A result of an operator that the policy of a unit saves: live where the unit
//   is before t.
// - Whatever else holds it without units: the program.
//
// Shares. Several holders may each count a part of the bytes. As each counts no
// more than what is live, any convex combination of choices of witnesses counts
// no more either. Holders of which only some can hold at once, because their
// units are inside each other, have shares that sum up to 1 over those that can.
//
// Which choice is best depends on the plan: FindMiscounted (miscounted.h) tells
// which storages a plan shows as live that their witnesses do not count.

// A holder that stands for a storage.
struct Witness {
  // kDecided: no holder; a decision says that it is live, up to a time.
  enum class Kind { kProgram, kSavedTensor, kArgument, kResult, kDecided };
  Kind kind = Kind::kProgram;
  int32_t index = -1;  // a saved tensor, a candidate or a time
  double share = 1;    // of the bytes

  // The index as what it is for kSavedTensor, for kArgument and kResult, and for
  // kDecided.
  graph::SavedId saved() const { return graph::SavedId{index}; }
  CandidateId candidate() const { return CandidateId{index}; }
  graph::Time time() const { return index; }

  bool operator==(const Witness&) const = default;
};
// Makes the witness of a kind that is about a saved tensor, a candidate or a time.
inline Witness SavedWitness(graph::SavedId saved) {
  return {.kind = Witness::Kind::kSavedTensor, .index = IndexOf(saved)};
}
inline Witness ArgumentWitness(CandidateId candidate) {
  return {.kind = Witness::Kind::kArgument, .index = IndexOf(candidate)};
}
inline Witness ResultWitness(CandidateId candidate) {
  return {.kind = Witness::Kind::kResult, .index = IndexOf(candidate)};
}
inline Witness DecidedWitness(graph::Time time) {
  return {.kind = Witness::Kind::kDecided, .index = time};
}

using Witnesses = graph::IndexedVector<graph::StorageId, std::vector<Witness>>;

// Returns the witnesses that hold most at the peak without units.
Witnesses FirstWitnesses(const TraceProblem& problem);

// Witnesses of one storage between two choices: the current ones with shares
// times 1 - weight, and the target's times weight.
std::vector<Witness> Blended(std::vector<Witness> current,
                             const std::vector<Witness>& target, double weight);

// Returns when a witness lets go of its storage, if it is in no unit.
graph::Time HoldsUntil(const TraceProblem& problem, graph::StorageId storage,
                       const Witness& witness);

// Returns whether one of the witnesses is of a candidate that is inside of this
// one's.
bool HasWitnessInside(const TraceProblem& problem,
                      const std::vector<Witness>& witnesses,
                      const Witness& outer);

// Returns holders of a storage as its witnesses, with equal shares: at most so many of
// them hold in a plan as are not around another one.
std::vector<Witness> WithEqualShares(const TraceProblem& problem,
                                     std::vector<Witness> holders);

// Adds a candidate's frame to the holders that are candidates, unless it is there.
std::vector<Witness> WithFrame(std::vector<Witness> holders,
                               CandidateId candidate);

// Returns how many candidates, as units, keep a saved tensor from holding its storage.
int CountReleasing(const TraceProblem& problem, graph::SavedId saved_id);

}  // namespace acplan::problems
