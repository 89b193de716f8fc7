#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/segment_layout.h"
#include "graph/snapshot/snapshot.h"

namespace acplan::graph {

// An event of a snapshot together with what it concerns.
struct RecordedEvent {
  SnapshotEvent event;
  int64_t index = 0;   // among those of the snapshot
  int32_t block = -1;  // of an allocation or a free: in Recording::blocks
  std::optional<int64_t> private_pool = {};  // of an allocation
};

struct RecordedBlock {
  int64_t address = 0;
  int64_t asked_bytes = 0;
  int32_t line = -1;
};

// The history of a device from its beginning on.
struct Recording {
  // The memory when the recording began. Blocks that lived then are the first
  // of `blocks`.
  std::vector<SegmentLayout> start;
  int64_t start_blocks = 0;
  std::vector<RecordedBlock> blocks;
  std::vector<RecordedEvent> events;
  // Events that contradict the snapshot, and are left out.
  int64_t contradictions = 0;
  int64_t start_reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  int64_t allocations = 0;
  int64_t failures = 0;  // out of memory
  int64_t retries = 0;   // requests for which the cache was emptied
  // The memory that the device had for PyTorch: its free bytes and the reserved
  // ones at a failure.
  std::optional<int64_t> device_bytes = {};
};

// Undoes the events of a device from the snapshot back to their beginning, so
// that they can be run again. `config` has the settings with which the program
// ran: the sizes of blocks of which only the requests are known follow from
// them. Throws InputError, naming `name`, if there are no events or segments
// contradict each other.
Recording MakeRecording(const DeviceSnapshot& device,
                        const AllocatorConfig& config, std::string_view name);

}  // namespace acplan::graph
