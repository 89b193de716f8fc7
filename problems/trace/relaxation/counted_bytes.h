#pragma once

#include <cstdint>
#include <vector>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/witnesses.h"

namespace acplan::problems {

// The bytes that witnesses count, with and without units.
struct CountedBytes {
  struct Release {
    int32_t storage = 0;
    int64_t bytes = 0;
  };
  // Bytes that the record of a candidate counts beyond `live` in [begin, end).
  struct Late {
    int candidate = 0;
    int32_t begin = 0;
    int32_t end = 0;
    int64_t bytes = 0;
  };
  std::vector<int64_t> live;  // a time, and the end: b(t)
  // A candidate: what it discards as a unit that saves nothing, and what of that,
  // and of its results, its policy may keep; in ascending order of storages.
  std::vector<std::vector<Release>> released, kept_results;
  std::vector<int64_t> kept_arguments;  // a candidate: what its frame keeps
  std::vector<Late> late;               // in ascending order of candidates
  std::vector<int32_t>
      live_end;  // a storage: when no witness holds it any more
};
CountedBytes BytesOfWitnesses(const TraceProblem& problem,
                              const Witnesses& witnesses);

}  // namespace acplan::problems
