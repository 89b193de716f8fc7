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
        count_(static_cast<int32_t>(trace_.operators.size())) {
    const size_t candidates = problem.candidates.size();
    counted_.live = problem.bytes_of_rank;
    counted_.live.push_back(0);
    std::vector<int64_t>& live = counted_.live;
    for (size_t t = live.size() - 1; t-- > 1;) live[t] -= live[t - 1];
    counted_.released.resize(candidates);
    counted_.kept_results.resize(candidates);
    counted_.kept_arguments.assign(candidates, 0);
    counted_.live_end.assign(storages, 0);
  }

  // Where candidates are inside each other, the innermost ones stand for the time
  // before the end of their calls.
  void Add(int32_t storage, const Witness& witness, bool has_inside) {
    const int64_t bytes = AddToCandidates(storage, witness);
    if (has_inside) return;
    const int32_t begin = std::max(trace_.storages[storage].born, 0);
    const int32_t end =
        std::min(std::max(EndOf(storage, witness), begin + 1), count_);
    counted_.live_end[storage] = std::max(counted_.live_end[storage], end);
    if (begin >= end) return;
    counted_.live[begin] += bytes;
    counted_.live[end] -= bytes;
  }

  CountedBytes Conclude() {
    std::ranges::sort(counted_.late, {}, &CountedBytes::Late::candidate);
    std::vector<int64_t>& live = counted_.live;
    for (int32_t t = 1; t <= count_; ++t) live[t] += live[t - 1];
    for (const CountedBytes::Late& late : counted_.late) {
      for (int32_t t = late.begin; t < late.end; ++t) live[t] += late.bytes;
    }
    return std::move(counted_);
  }

 private:
  // Returns until when a witness holds where its units are none.
  int32_t EndOf(int32_t storage, const Witness& witness) const {
    const int32_t end = HoldsUntil(problem_, storage, witness);
    switch (witness.kind) {
      case Witness::Kind::kProgram:
      case Witness::Kind::kSavedTensor:
        return end;
      case Witness::Kind::kDecided:
        // What is live at a time has been so since it was made.
        return witness.index + 1;
      case Witness::Kind::kArgument:
      case Witness::Kind::kResult:
        return std::min(end, CallOf(problem_, witness.index).end);
    }
    return end;
  }

  // Adds what candidates keep or release if they are units. Returns the bytes that the
  // witness stands for; what is counted is rounded down, what is released up.
  int64_t AddToCandidates(int32_t storage, const Witness& witness) {
    const double share =
        witness.share * static_cast<double>(AllocatedBytesOf(trace_, storage));
    const auto bytes = static_cast<int64_t>(share);
    switch (witness.kind) {
      case Witness::Kind::kProgram:
      case Witness::Kind::kDecided:
        break;
      case Witness::Kind::kSavedTensor: {
        const SavedTensor& saved = trace_.saved[witness.index];
        const int32_t end = HoldsUntil(problem_, storage, witness);
        for (int c = CandidateAround(problem_, saved); c >= 0;
             c = problem_.candidates[c].parent) {
          if (!Releases(problem_, c, storage, end)) continue;
          counted_.released[c].push_back(
              {storage, static_cast<int64_t>(std::ceil(share))});
        }
        AddLate(saved, end, bytes);
        break;
      }
      case Witness::Kind::kArgument:
        counted_.kept_arguments[witness.index] += bytes;
        break;
      case Witness::Kind::kResult:
        counted_.kept_results[witness.index].push_back({storage, bytes});
        break;
    }
    return bytes;
  }

  // In the record of the innermost candidate around it a saved tensor holds as
  // long as without units: where one further out is a unit, the record is not
  // used.
  void AddLate(const SavedTensor& saved, int32_t end, int64_t bytes) {
    const int c = CandidateAround(problem_, saved);
    if (c < 0 || end < trace_.forward_end) return;
    const CandidateCall& candidate = problem_.candidates[c];
    const int first = candidate.node;
    const int beyond = first + problem_.forest.nodes[first].subtree_size;
    const int32_t late_end =
        std::min({HeldByAutogradUntil(saved), candidate.frame_end, count_});
    for (int32_t t = end; t < late_end; ++t) {
      const int record = problem_.record_of[t];
      if (record >= first && record < beyond) {
        counted_.late.push_back({c, t, t + 1, bytes});
      }
    }
  }

  const TraceProblem& problem_;
  const Trace& trace_;
  const int32_t count_;
  CountedBytes counted_;
};

}  // namespace

CountedBytes BytesOfWitnesses(const TraceProblem& problem,
                              const Witnesses& witnesses) {
  Counting counting(problem, witnesses.size());
  for (int32_t s = 0; s < std::ssize(witnesses); ++s) {
    for (const Witness& witness : witnesses[s]) {
      counting.Add(s, witness,
                   HasWitnessInside(problem, witnesses[s], witness));
    }
  }
  return counting.Conclude();
}

}  // namespace acplan::problems
