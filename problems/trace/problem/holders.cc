#include "problems/trace/problem/holders.h"

#include <utility>

namespace acplan::problems {

using graph::kNever;
using graph::SavedTensor;

graph::Time CopyHoldsUntil(const TraceProblem& problem,
                           const SavedTensor& saved) {
  if (saved.unpacked != kNever) return saved.local_end;
  graph::Time end = saved.released;
  if (!problem.may_skip) return end;
  for (CandidateId c = CandidateAround(problem, saved); c != graph::kNone;
       c = problem.candidates[c].parent) {
    end = std::min(end, problem.candidates[c].first_request);
  }
  return end;
}

bool HoldsArguments(const TraceProblem& problem, CandidateId candidate,
                    graph::Time time) {
  return CallOf(problem, candidate).start <= time &&
         problem.candidates[candidate].frame_end > time;
}

bool IsBetweenRuns(const TraceProblem& problem, CandidateId candidate,
                   graph::Time time) {
  return CallOf(problem, candidate).end <= time &&
         problem.candidates[candidate].first_request > time;
}

bool Releases(const TraceProblem& problem, CandidateId candidate,
              graph::StorageId storage, graph::Time end) {
  return !IsArgument(problem, candidate, storage) &&
         problem.held_until[storage] <
             std::min(problem.candidates[candidate].first_request, end);
}

std::optional<graph::GroupId> GroupThatKeeps(const CandidateCall& candidate,
                                             graph::StorageId storage) {
  const auto result = std::ranges::lower_bound(
      candidate.results, std::pair(storage, graph::GroupId{0}));
  const bool is_result =
      result != candidate.results.end() && result->first == storage;
  return is_result ? std::optional(result->second) : std::nullopt;
}

}  // namespace acplan::problems
