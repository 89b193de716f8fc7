#include "problems/trace/relaxation/counted_bytes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::SavedTensor;
using graph::Trace;

namespace {

// Sums up what each witness counts. While it does, live[t] is the change at t.
class Counting {
 public:
  Counting(const TraceProblem& problem, size_t storages)
      : problem_(problem),
        trace_(*problem.trace),
        end_(static_cast<graph::Time>(trace_.operators.size())) {
    const size_t candidates = problem.candidates.size();
    result_.live = problem.bytes_of_rank.values();
    result_.live.push_back(0);
    std::vector<int64_t>& live = result_.live;
    for (size_t t = live.size() - 1; t-- > 1;) live[t] -= live[t - 1];
    result_.released.resize(candidates);
    result_.kept_results.resize(candidates);
    result_.kept_arguments.assign(candidates, 0);
    result_.live_end.assign(storages, 0);
  }

  // Where candidates are inside each other, the innermost ones stand for the time
  // before the end of their calls.
  void Add(graph::StorageId storage, const Witness& witness, bool has_inside) {
    const int64_t bytes = AddToCandidates(storage, witness);
    if (has_inside) return;
    const graph::Time begin =
        std::max(StartOf(trace_.storages[storage].born), 0);
    const graph::Time end =
        std::min(std::max(EndOfHolding(storage, witness), begin + 1), end_);
    result_.live_end[storage] = std::max(result_.live_end[storage], end);
    if (begin >= end) return;
    result_.live[begin] += bytes;
    result_.live[end] -= bytes;
  }

  CountedBytes Conclude() {
    std::ranges::sort(result_.late, {}, &CountedBytes::Late::candidate);
    std::vector<int64_t>& live = result_.live;
    for (graph::Time t = 1; t <= end_; ++t) live[t] += live[t - 1];
    for (const CountedBytes::Late& late : result_.late) {
      for (graph::Time t = late.begin; t < late.end; ++t) live[t] += late.bytes;
    }
    return std::move(result_);
  }

 private:
  // Returns until when a witness holds where its units are none.
  graph::Time EndOfHolding(graph::StorageId storage,
                           const Witness& witness) const {
    const graph::Time end = HoldsUntil(problem_, storage, witness);
    switch (witness.kind) {
      case Witness::Kind::kProgram:
      case Witness::Kind::kSavedTensor:
        return end;
      case Witness::Kind::kDecided:
        // A storage that is live at a time has been so since it was made.
        return witness.time() + 1;
      case Witness::Kind::kArgument:
      case Witness::Kind::kResult:
        return std::min(end, CallOf(problem_, witness.candidate()).end);
    }
    return end;
  }

  // Adds what candidates keep or release if they are units. Returns the bytes that the
  // witness stands for; what is counted is rounded down, what is released up.
  int64_t AddToCandidates(graph::StorageId storage, const Witness& witness) {
    const double share =
        witness.share * static_cast<double>(AllocatedBytesOf(trace_, storage));
    const auto bytes = static_cast<int64_t>(share);
    switch (witness.kind) {
      case Witness::Kind::kProgram:
      case Witness::Kind::kDecided:
        break;
      case Witness::Kind::kSavedTensor: {
        const SavedTensor& saved = trace_.saved[witness.saved()];
        const graph::Time end = HoldsUntil(problem_, storage, witness);
        for (CandidateId c = CandidateAround(problem_, saved);
             c != graph::kNone; c = problem_.candidates[c].parent) {
          if (!Releases(problem_, c, storage, end)) continue;
          result_.released[c].push_back(
              {storage, static_cast<int64_t>(std::ceil(share))});
        }
        AddLate(saved, end, bytes);
        break;
      }
      case Witness::Kind::kArgument:
        result_.kept_arguments[witness.candidate()] += bytes;
        break;
      case Witness::Kind::kResult:
        result_.kept_results[witness.candidate()].push_back({storage, bytes});
        break;
    }
    return bytes;
  }

  // In the record of the innermost candidate around it a saved tensor holds as
  // long as without units: where one further out is a unit, the record is not
  // used.
  void AddLate(const SavedTensor& saved, graph::Time end, int64_t bytes) {
    const CandidateId c = CandidateAround(problem_, saved);
    if (c == graph::kNone || end < trace_.forward_end) return;
    const CandidateCall& candidate = problem_.candidates[c];
    const WalkNodeId first = candidate.node;
    const WalkNodeId end_of_subtree = EndOfSubtree(problem_.forest, first);
    const graph::Time late_end =
        std::min({HeldByAutogradUntil(saved), candidate.frame_end, end_});
    for (graph::Time t = end; t < late_end; ++t) {
      const WalkNodeId record = problem_.record_of[t];
      if (record >= first && record < end_of_subtree) {
        result_.late.push_back({c, t, t + 1, bytes});
      }
    }
  }

  const TraceProblem& problem_;
  const Trace& trace_;
  const graph::Time end_;
  CountedBytes result_;
};

}  // namespace

CountedBytes BytesOfWitnesses(const TraceProblem& problem,
                              const Witnesses& witnesses) {
  Counting counting(problem, witnesses.size());
  for (const graph::StorageId s : witnesses.ids()) {
    for (const Witness& witness : witnesses[s]) {
      counting.Add(s, witness,
                   HasWitnessInside(problem, witnesses[s], witness));
    }
  }
  return counting.Conclude();
}

}  // namespace acplan::problems
