#pragma once

#include <cstdint>

#include "graph/run/training_run.h"

namespace acplan::graph {

// The requests of a run, as it is made.
class RunEvents {
 public:
  // The place of the requests that are added.
  RunMoment moment;

  // Adds an allocation on a stream. Returns its block.
  int32_t Allocate(StorageId storage, int64_t bytes, int64_t stream = 0) {
    const auto block = static_cast<int32_t>(run_.storages.size());
    run_.storages.push_back(storage);
    run_.events.block_ids.push_back(block);
    Add({.kind = AllocatorEvent::Kind::kAllocate,
         .block = block,
         .bytes = bytes,
         .stream = stream});
    return block;
  }
  int32_t AllocateForDdp(int64_t bytes) { return Allocate(kOfDdp, bytes); }

  void Free(int32_t block) {
    Add({.kind = AllocatorEvent::Kind::kFree, .block = block});
  }

  void EmptyCache() { Add({.kind = AllocatorEvent::Kind::kEmptyCache}); }

  TrainingRun& run() { return run_; }

 private:
  void Add(const AllocatorEvent& event) {
    run_.events.events.push_back(event);
    run_.moments.push_back(moment);
  }

  TrainingRun run_;
};

}  // namespace acplan::graph
