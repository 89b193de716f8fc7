#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/least_device.h"
#include "graph/run/training_run.h"

namespace acplan::graph {

// The way in which a run ends on a device.
struct RunOutcome {
  Replay replay;
  int64_t iterations = 0;  // that ended
  // How many of the last iterations the later ones repeat, over and over: they
  // left every block, and all free ones, as the one before them had. 0: no
  // iteration left memory as an earlier one did.
  int64_t period = 0;
  int64_t period_retries = 0;  // of those
  size_t events = 0;           // that ran

  bool Fits() const { return !replay.failure; }
};

// Runs iterations on a device until one leaves memory as an earlier one did, fails, or none
// is left. Calls `use`, if there is one, after each event as ReplayEvents does.
RunOutcome RunOnDevice(
    const TrainingRun& run, const AllocatorConfig& config, int64_t device_bytes,
    const std::function<void(size_t, const CachingAllocator&, BlockId)>& use =
        nullptr);

// Returns the smallest device of at least `from_bytes` on which the run does not
// fail, or none. Long runs end the search early, as most_events does.
std::optional<LeastDevice> FindLeastDevice(const TrainingRun& run,
                                           const AllocatorConfig& config,
                                           int64_t from_bytes = 0);

}  // namespace acplan::graph
