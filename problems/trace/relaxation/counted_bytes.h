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
    int candidate = 0;
    graph::Time begin = 0;
    graph::Time end = 0;
    int64_t bytes = 0;
  };
  std::vector<int64_t> live;  // indexed by time, and the end: b(t)
  // A candidate: what it discards as a unit that saves nothing, and what of that,
  // and of its results, its policy may keep.
  std::vector<std::vector<Release>> released, kept_results;
  std::vector<int64_t> kept_arguments;  // a candidate: what its frame keeps
  std::vector<Late> late;
  // When no witness holds a storage any more.
  graph::IndexedVector<graph::StorageId, graph::Time> live_end;
};
CountedBytes BytesOfWitnesses(const TraceProblem& problem,
                              const Witnesses& witnesses);

}  // namespace acplan::problems
