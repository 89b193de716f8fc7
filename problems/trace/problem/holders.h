#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "graph/trace/allocation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Finds who may hold a storage of a trace problem, and until when.

inline int64_t AllocatedBytesOf(const graph::Trace& trace,
                                graph::StorageId storage) {
  return graph::AllocatedBytes(trace.storages[storage].bytes);
}

inline const graph::TraceCall& CallOf(const TraceProblem& problem,
                                      CandidateId candidate) {
  return problem.trace->calls[problem.candidates[candidate].call];
}

// Returns the innermost candidate around a saved tensor, if any.
inline CandidateId CandidateAround(const TraceProblem& problem,
                                   const graph::SavedTensor& saved) {
  return saved.call == graph::kNone ? graph::kNone
                                    : problem.candidate_of[saved.call];
}

// Returns until when autograd holds what a unit that ran again made anew. A storage
// that backward never asks for is not made again where operators may be skipped: then
// it ends before any unit around it runs again.
graph::Time CopyHoldsUntil(const TraceProblem& problem,
                           const graph::SavedTensor& saved);

// Returns whether the storage is an argument of the candidate.
inline bool IsArgument(const TraceProblem& problem, CandidateId candidate,
                       graph::StorageId storage) {
  return std::ranges::binary_search(problem.frames_of[storage], candidate);
}

// Returns whether a candidate's frame holds its arguments at a time.
bool HoldsArguments(const TraceProblem& problem, CandidateId candidate,
                    graph::Time time);

// Returns whether a candidate, as a unit, has ended by the time and runs again
// after it.
bool IsBetweenRuns(const TraceProblem& problem, CandidateId candidate,
                   graph::Time time);

// Returns whether a candidate, as a unit, keeps a saved tensor from holding its
// storage between its two runs. The tensor lets go of it at `end` at the latest.
bool Releases(const TraceProblem& problem, CandidateId candidate,
              graph::StorageId storage, graph::Time end);

// Returns the group of operators of a candidate whose saving keeps a storage, if any.
std::optional<graph::GroupId> GroupThatKeeps(const CandidateCall& candidate,
                                             graph::StorageId storage);

}  // namespace acplan::problems
