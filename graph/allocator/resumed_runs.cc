#include "graph/allocator/resumed_runs.h"

#include <algorithm>
#include <utility>

#include "graph/allocator/state_layout.h"

// A run asks for the device's size only in comparisons (device_memory.h), and the
// allocator keeps the smallest larger size with which one comes out differently. Here it
// keeps one for each part of the run. Let d be a device on which the run failed and n the
// next one, the least of all parts.
//
// The beginning. Up to the first part whose next device is at most n, all comparisons
// come out on n as on d. So the run on n begins with a copy of the memory before that
// part, or with one before it and runs the events between them. A copy of a run on a
// smaller device serves as long as no event before it has a next device of at most n.
//
// The end. Let the run on n have the memory before some part that the run on d had
// there (state_layout.h), and let all parts from there on have a next device above n.
// Then the rest of the run is the same on both: it fails on n as on d, and the next
// devices of its parts are the same. Such meetings are frequent. The larger device often
// delays one retry by some requests, and once the blocks are freed that were made
// between, the memory is the same again.
//
// A run that repeats itself before a meeting would never fail, but the run on d fails
// after it; so where the runs meet, no repetition is missed.

namespace acplan::graph {
namespace {

// Returns whether segments of which the device decides how long they are were there
// first. Where they end is not known.
bool BeginsExpandable(const AllocatorEvents& events) {
  return std::ranges::any_of(events.start, &SegmentLayout::is_expandable);
}

}  // namespace

ResumedRuns::ResumedRuns(const AllocatorEvents& events,
                         const AllocatorConfig& config, const RunEnds& ends,
                         size_t part_events)
    : events_(events),
      config_(config),
      ends_(ends),
      part_events_(BeginsExpandable(events)
                       ? std::max<size_t>(events.events.size(), 1)
                       : part_events) {}

size_t ResumedRuns::EndOf(size_t part) const {
  return std::min((part + 1) * part_events_, events_.events.size());
}

DeviceTrial ResumedRuns::Run(int64_t device_bytes) {
  Checkpoint run = Resume(device_bytes);
  const size_t changed = ChangedPart(device_bytes);
  const size_t parts =
      (events_.events.size() + part_events_ - 1) / part_events_;
  parts_.resize(std::max(parts_.size(), std::min<size_t>(1, parts)));
  DeviceTrial trial{.fits = true};
  for (; run.part < parts; ++run.part) {
    const bool is_kept =
        !checkpoints_.empty() && checkpoints_.back().part == run.part;
    if (run.part == changed && run.part > 0 && !is_kept) {
      checkpoints_.push_back(run);
    }
    if (run.part > changed && MeetsLastRun(run, device_bytes)) {
      trial.fits = false;
      break;
    }
    const PartEnd end = RunPart(run, trial);
    Part& part = parts_[run.part];
    part.next_device_bytes = run.runner.TakeNextDevice();
    run.next_device_bytes =
        std::min(run.next_device_bytes, part.next_device_bytes);
    if (end == PartEnd::kGoesOn) continue;
    trial.fits = end == PartEnd::kRepeats;
    parts_.resize(run.part + 1);
    break;
  }
  trial.next_device_bytes = NextDevice();
  return trial;
}

// Returns the memory from which the run goes on: that of the last checkpoint that holds
// for the device, or none.
ResumedRuns::Checkpoint ResumedRuns::Resume(int64_t device_bytes) {
  while (!checkpoints_.empty() &&
         checkpoints_.back().next_device_bytes <= device_bytes) {
    checkpoints_.pop_back();
  }
  for (; !checkpoints_.empty(); checkpoints_.pop_back()) {
    Checkpoint run = checkpoints_.back();
    if (run.runner.MoveTo(device_bytes)) return run;
  }
  return {.runner = EventRunner(events_, config_, device_bytes)};
}

ResumedRuns::PartEnd ResumedRuns::RunPart(Checkpoint& run,
                                          DeviceTrial& trial) const {
  const size_t begin = run.part * part_events_;
  auto end = static_cast<size_t>(std::ranges::upper_bound(ends_.events, begin) -
                                 ends_.events.begin());
  BlockId block = kNoBlock;
  for (size_t k = begin; k < EndOf(run.part); ++k) {
    ++trial.events;
    if (!run.runner.Run(k, block)) return PartEnd::kFails;
    if (end == ends_.events.size() || ends_.events[end] != k + 1) continue;
    if (ends_.repeats(end, run.runner)) return PartEnd::kRepeats;
    ++end;
  }
  return PartEnd::kGoesOn;
}

// Returns whether the rest of the last run is that of this one. Else keeps what this one
// has for the next one to meet.
bool ResumedRuns::MeetsLastRun(const Checkpoint& run, int64_t device_bytes) {
  if (run.part == parts_.size()) parts_.emplace_back();
  Part& part = parts_[run.part];
  // Runs on larger devices differ from this one after its first next device.
  const bool is_kept = run.next_device_bytes < kNoDevice;
  const bool may_meet =
      !part.layout.empty() && part.next_from_here > device_bytes;
  if (!is_kept && !may_meet) {
    part.layout.clear();
    return false;
  }
  std::vector<int64_t> layout =
      StateLayout(run.runner.allocator().state(), run.runner.places());
  if (may_meet && layout == part.layout) return true;
  part.layout = is_kept ? std::move(layout) : std::vector<int64_t>();
  return false;
}

// Returns the first part of the last run that differs on the device.
size_t ResumedRuns::ChangedPart(int64_t device_bytes) const {
  const auto changed = std::ranges::find_if(parts_, [&](const Part& part) {
    return part.next_device_bytes <= device_bytes;
  });
  return parts_.empty() ? 0 : static_cast<size_t>(changed - parts_.begin());
}

// Sums up the parts of a run.
int64_t ResumedRuns::NextDevice() {
  int64_t next = kNoDevice;
  for (size_t k = parts_.size(); k > 0; --k) {
    Part& part = parts_[k - 1];
    next = std::min(next, part.next_device_bytes);
    part.next_from_here = next;
  }
  return next;
}

}  // namespace acplan::graph
