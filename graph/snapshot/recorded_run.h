#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/snapshot/recording.h"
#include "graph/snapshot/snapshot.h"

namespace acplan::graph {

// The allocator beside a recording.
struct RecordingComparison {
  int64_t allocations = 0;
  int64_t equal_allocations = 0;  // at the recorded address
  // The first allocation elsewhere, among the events of the snapshot.
  std::optional<int64_t> first_difference = {};
  int64_t segments = 0;        // of the snapshot
  int64_t equal_segments = 0;  // of the same bytes, with the same blocks
  int64_t peak_allocated_bytes = 0;
  int64_t peak_reserved_bytes = 0;
};

// Runs the recording on the allocator with the settings of `config`, which the
// program had, and compares each allocation's address, and in the end each
// segment and block. Only what the device decided is taken from the recording:
// the address of a new segment, and when memory was given back.
RecordingComparison CompareWithRecording(const DeviceSnapshot& device,
                                         const Recording& recording,
                                         const AllocatorConfig& config);

// The requests of a recorded run.
struct RecordedRun {
  AllocatorEvents events;
  // The place of each event among those of the snapshot; -1: its block is older
  // than the recording.
  std::vector<int64_t> indices;
  std::vector<int32_t> lines;        // by event: in Snapshot::lines
  std::vector<int32_t> block_lines;  // by block of the events
  // True for each event that is a request which failed in the recording.
  std::vector<bool> is_failure;
  // True if blocks older than the recording lie where they lay; else they are
  // allocated first, by address.
  bool keeps_start = true;
};

// Returns the requests, to run them with other settings or on another device.
// `recorded` are the settings of the recording. Frees happen when they were
// completed, and the cache is emptied where the program emptied it. A request
// that failed in the recording is freed at once.
RecordedRun MakeRecordedRun(const Recording& recording,
                            const AllocatorConfig& recorded,
                            const AllocatorConfig& config);

}  // namespace acplan::graph
