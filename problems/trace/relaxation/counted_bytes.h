#pragma once

#include <cstdint>
#include <vector>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/witnesses.h"

namespace acplan::problems {

// The bytes that witnesses count, with and without units.
struct CountedBytes {
  struct Release {
    graph::StorageId storage = {};
    int64_t bytes = 0;
  };
  // Bytes that the record of a candidate counts beyond `live` in [begin, end).
  struct Late {
    CandidateId candidate = {};
    graph::Time begin = 0;
    graph::Time end = 0;
    int64_t bytes = 0;
  };
  std::vector<int64_t> live;  // indexed by time, and the end: b(t)
  // The bytes that a candidate discards as a unit that saves nothing, and the part of
  // them, and of its results, that its policy may keep; in ascending order of storages.
  graph::IndexedVector<CandidateId, std::vector<Release>> released,
      kept_results;
  // The bytes that its frame keeps.
  graph::IndexedVector<CandidateId, int64_t> kept_arguments;
  std::vector<Late> late;  // in ascending order of candidates
  // When no witness holds a storage any more.
  graph::IndexedVector<graph::StorageId, graph::Time> live_end;
};
// Sums up what witnesses count.
CountedBytes BytesOfWitnesses(const TraceProblem& problem,
                              const Witnesses& witnesses);

}  // namespace acplan::problems
