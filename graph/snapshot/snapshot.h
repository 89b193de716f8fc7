#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// A piece of a segment, as PyTorch's snapshot has it.
struct SnapshotBlock {
  enum class State : uint8_t { kFree, kAllocated, kWaiting };

  State state = State::kFree;  // kWaiting: freed, but another stream uses it
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t asked_bytes = 0;
  int32_t line = -1;  // in Snapshot::lines; -1: not known
};

// A range of addresses that cudaMalloc returned, or a mapped range of an
// expandable segment, without a gap.
struct SnapshotSegment {
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t stream = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::optional<int64_t> private_pool = {};  // numbered from 1 on
  std::vector<SnapshotBlock> blocks = {};    // by address, without gaps
};

// An entry of the history that PyTorch records.
struct SnapshotEvent {
  enum class Kind : uint8_t {
    kAllocate,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAllocate,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kOutOfMemory,  // address: the free bytes of the device
  };

  Kind kind = Kind::kAllocate;
  bool is_cache_call = false;  // the program itself emptied the cache
  int64_t address = 0;
  int64_t bytes = 0;  // that were asked for; of kOutOfMemory: rounded up
  int64_t stream = 0;
  int32_t line = -1;
};

// The memory of one device at the time of the snapshot, and its history.
struct DeviceSnapshot {
  std::vector<SnapshotSegment> segments;  // by address
  std::vector<SnapshotEvent> events;      // the oldest first
};

// A snapshot of torch.cuda.memory._dump_snapshot.
struct Snapshot {
  // The text of PYTORCH_ALLOC_CONF; nothing: the snapshot does not say.
  std::optional<std::string> allocator = {};
  std::vector<DeviceSnapshot> devices;
  std::vector<std::string> lines;  // of Python
};

// Reads a file that `python -m acplan snapshot` wrote (docs/file_formats.md).
// Throws InputError for anything else: fields of another type, segments that
// overlap or have no memory, blocks that do not fill their segments.
Snapshot ReadSnapshot(const std::filesystem::path& path);

// Parses the same from text. Errors name `name` in place of a file.
Snapshot ParseSnapshot(std::string_view text, std::string_view name);

}  // namespace acplan::graph
