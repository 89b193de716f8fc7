#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"

namespace acplan::graph {

// The places of a run at which it may repeat itself.
struct RunEnds {
  std::vector<size_t> events = {};  // how many are before each place, ascending
  // Returns whether the run goes on for ever as it went on from an earlier place. Called
  // in the order of the places; a run that is resumed calls it again for later ones.
  std::function<bool(size_t, const EventRunner&)> repeats = {};
};

// The outcome of a run on one device.
struct DeviceTrial {
  bool fits = false;
  // A device of at least this size may run otherwise; all below it run the same.
  int64_t next_device_bytes = 0;
  int64_t events = 0;  // that were run, and not known from other trials
};

// Runs of one list of events on larger and larger devices. Each one begins where it
// differs from the one before it, and ends where it meets that one again.
class ResumedRuns {
 public:
  // Divides the events into parts of `part_events`. Keeps references to `events`,
  // `config` and `ends`.
  ResumedRuns(const AllocatorEvents& events, const AllocatorConfig& config,
              const RunEnds& ends, size_t part_events);

  // Runs until the events end, one fails, or the run repeats itself.
  //
  // Requires that all runs so far failed, and that the device is at least as large as
  // the next device of the last one.
  DeviceTrial Run(int64_t device_bytes);

 private:
  static constexpr int64_t kNoDevice = std::numeric_limits<int64_t>::max();

  // Some events of the last run, or of one before it that was the same from there on.
  struct Part {
    int64_t next_device_bytes = kNoDevice;  // of these events alone
    int64_t next_from_here = kNoDevice;     // of these and all that follow
    std::vector<int64_t> layout = {};  // before the events; empty: not known
  };

  // The memory before a part.
  struct Checkpoint {
    EventRunner runner;
    size_t part = 0;
    int64_t next_device_bytes = kNoDevice;  // of all events before
  };

  enum class PartEnd : uint8_t { kGoesOn, kFails, kRepeats };

  Checkpoint Resume(int64_t device_bytes);
  PartEnd RunPart(Checkpoint& run, DeviceTrial& trial) const;
  bool MeetsLastRun(const Checkpoint& run, int64_t device_bytes);
  size_t ChangedPart(int64_t device_bytes) const;
  int64_t NextDevice();
  size_t EndOf(size_t part) const;

  const AllocatorEvents& events_;
  const AllocatorConfig& config_;
  const RunEnds& ends_;
  size_t part_events_;
  std::vector<Part> parts_;              // of the last run, up to its end
  std::vector<Checkpoint> checkpoints_;  // in the order of their parts
};

}  // namespace acplan::graph
