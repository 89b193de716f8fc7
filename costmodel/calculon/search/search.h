#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/calculon/search/space.h"

namespace acplan::costmodel {

// The part `index` of `count`, from 1: a contiguous piece of the space with about as many
// executions as the others.
struct SearchShard {
  int index = 1;
  int count = 1;

  bool operator==(const SearchShard&) const = default;
};

struct SearchCounts {
  int64_t total = 0;
  int64_t good = 0;
  int64_t bad = 0;

  bool operator==(const SearchCounts&) const = default;
};

struct SearchProgress {
  int64_t done_count = 0;
  int64_t total = 0;  // an upper bound if microbatches are skipped
  double best_rate = 0;
};

struct SearchOptions {
  int64_t top_n = 1;
  // If true, larger microbatches are skipped after one that has no feasible execution.
  bool breaks_microbatches = false;
  bool counts_only = false;  // then no execution counts as feasible
  int threads = 0;           // 0 for as many as there are cores
  SearchShard shard = {};
  const std::atomic<bool>* interrupt = nullptr;  // ends the search when set
  // Called now and then, by one thread at a time.
  std::function<void(const SearchProgress&)> on_progress = {};
};

// A feasible execution, and its place in the order of the space.
struct Candidate {
  double sample_rate = 0;
  double memory = 0;  // bytes of the first tier
  int64_t unit = 0;
  int64_t variant = 0;
  int64_t index = 0;
  Execution execution;
};

struct SearchOutcome {
  SearchCounts counts;
  // Descending, equal ones in the order of the space.
  std::vector<Candidate> best;
  bool was_interrupted = false;
};

// Returns the number of executions of a shard, if none is skipped.
int64_t CountSpace(const SearchProblem& problem, const SearchShard& shard = {});

// Finds the executions with the highest sample rates. The result does not depend on the
// number of threads. Memory does not grow with the space.
SearchOutcome FindBest(const SearchProblem& problem,
                       const SearchOptions& options);

// Passes the rows (CsvRow) of all feasible executions to `write`, piece by piece, in the
// order of the space. The options top_n and breaks_microbatches are ignored. `best` of the
// result has the best execution.
SearchOutcome ListAll(const SearchProblem& problem,
                      const SearchOptions& options,
                      const std::function<void(const std::string&)>& write);

}  // namespace acplan::costmodel
