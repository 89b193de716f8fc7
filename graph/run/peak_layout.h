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
  // The events that allocated the blocks before and behind it; -1: there is none.
  std::array<int64_t, 2> neighbours = {-1, -1};
};

// A block of a segment, allocated or free.
struct BlockUse {
  int64_t segment = 0;  // its number
  int64_t offset = 0;   // in the segment
  int64_t bytes = 0;
  int64_t hole_bytes = 0;     // that are free and can't be given back
  StorageId storage = kNone;  // kNone: the block is free
  int64_t event = -1;         // that allocated it; -1: none
};

// The memory of a device at one event of a run.
struct PeakLayout {
  int64_t event = -1;  // -1: the run asks for nothing
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  std::vector<SegmentUse> segments = {};
  std::vector<Hole> holes = {};       // the largest first
  std::vector<BlockUse> blocks = {};  // that have memory, by segment and offset

  int64_t HoleBytes() const;
};

// Returns the memory where the run fails or else where it reserves most.
// `outcome` is what RunOnDevice returned for the same arguments.
PeakLayout LayoutAtPeak(const TrainingRun& run, const AllocatorConfig& config,
                        int64_t device_bytes, const RunOutcome& outcome);

}  // namespace acplan::graph
