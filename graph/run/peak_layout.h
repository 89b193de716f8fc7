#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/run/run_on_device.h"
#include "graph/run/training_run.h"

namespace acplan::graph {

// Free memory of a segment that the allocator can't give back, because of the
// blocks around it.
struct Hole {
  int64_t bytes = 0;  // without the whole pages that can be given back
  // The storages of the blocks before and behind it; kNone: there is none.
  std::array<StorageId, 2> neighbours = {kNone, kNone};
};

// The memory of a device at one event of a run.
struct PeakLayout {
  int64_t event = -1;  // -1: the run asks for nothing
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  std::vector<SegmentUse> segments = {};
  std::vector<Hole> holes = {};  // the largest first

  int64_t HoleBytes() const;
};

// Returns the memory where the run fails or else where it reserves most.
// `outcome` is what RunOnDevice returned for the same arguments.
PeakLayout LayoutAtPeak(const TrainingRun& run, const AllocatorConfig& config,
                        int64_t device_bytes, const RunOutcome& outcome);

}  // namespace acplan::graph
