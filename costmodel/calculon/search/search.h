#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/calculon/search/space.h"

namespace acplan::costmodel {

// Part `index` of `count`, from 1: an unbroken piece of the space with about as
// many executions as the others.
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
  int64_t done = 0;
  int64_t total = 0;  // an upper bound where microbatches are broken off
  double best_rate = 0;
};

struct SearchOptions {
  int64_t top_n = 1;
  // Larger microbatches are not tried where one has no feasible execution.
  bool breaks_microbatches = false;
  bool counts_only = false;  // nothing is feasible then
  int threads = 0;           // 0: as many as there are cores
  SearchShard shard = {};
  const std::atomic<bool>* interrupt = nullptr;  // ends the search when set
  // Called now and then, by one thread at a time.
  std::function<void(const SearchProgress&)> on_progress = {};
};

// A feasible execution, and its place in the order of the space.
struct Candidate {
  double sample_rate = 0;
  double memory = 0;  // of the first tier, in bytes
  int64_t unit = 0;
  int64_t variant = 0;
  int64_t index = 0;
  Execution execution;
};

struct SearchOutcome {
  SearchCounts counts;
  std::vector<Candidate> best;  // descending; of equal ones the first is first
  bool was_interrupted = false;
};

// Executions of a shard, if none is broken off.
int64_t CountSpace(const SearchProblem& problem, const SearchShard& shard = {});

// The executions with the highest sample rates. The result does not depend on
// the number of threads. Memory does not grow with the space.
SearchOutcome FindBest(const SearchProblem& problem,
                       const SearchOptions& options);

// The rows (CsvRow) of all feasible executions, in the order of the space, by
// `write` piece by piece; of the options, top_n and breaks_microbatches do not
// matter. `best` has the best one.
SearchOutcome ListAll(const SearchProblem& problem,
                      const SearchOptions& options,
                      const std::function<void(const std::string&)>& write);

}  // namespace acplan::costmodel
