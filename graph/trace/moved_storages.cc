#include "graph/trace/moved_storages.h"

#include <algorithm>
#include <tuple>
#include <utility>

// Finds when what is offloaded goes and comes back.
//
// Frames outside of all others are calls that do not overlap, so their order in
// the list is that in which they begin and end. What happens to a frame's
// storages depends on two of them, the frame and the next one, and so is found
// from the step's layout alone, without the lives.

namespace acplan::graph {
namespace {

void AddOnce(std::vector<int32_t>& storages, int32_t storage) {
  if (std::ranges::find(storages, storage) == storages.end()) {
    storages.push_back(storage);
  }
}

Moment BeginOfRerun(const StepLayout& layout, int32_t f) {
  const size_t place = layout.reruns[f].first_place;
  return {.step = layout.rerun_steps[place],
          .rerun = static_cast<int64_t>(place)};
}

std::optional<Moment> Earlier(const std::optional<Moment>& a,
                              const std::optional<Moment>& b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// By frame outside of all others that offloads something.
class MomentsOfFrames {
 public:
  MomentsOfFrames(const Frames& frames, const StepLayout& layout)
      : frames_(frames), layout_(layout) {
    for (int32_t f = 0; f < std::ssize(frames.list); ++f) {
      first_rerun_ = Earlier(first_rerun_, RerunOf(f));
    }
  }

  // Without storage and operator.
  MovedStorage Of(int32_t f) const {
    const Frame& frame = frames_.list[f];
    const int32_t next = frame.subtree_end;
    const bool is_last = next >= std::ssize(frames_.list);
    MovedStorage moved = {.frame = f,
                          .use = RerunOf(f),
                          .frame_end = layout_.StepAt(frame.release_time)};
    const Moment end = {.step = moved.frame_end};
    const std::optional<Moment> released =
        is_last ? first_rerun_
                : Moment{layout_.StepAt(frames_.list[next].call->end)};
    moved.release = Earlier(released, moved.use);
    moved.fetch = Earlier(is_last ? std::nullopt : RerunOf(next), moved.use);
    if (moved.use) return moved;
    if (moved.release && *moved.release >= end) moved.release.reset();
    if (moved.fetch && *moved.fetch >= end) moved.fetch.reset();
    return moved;
  }

 private:
  std::optional<Moment> RerunOf(int32_t f) const {
    if (!layout_.reruns[f].is_laid_out) return std::nullopt;
    return BeginOfRerun(layout_, f);
  }

  const Frames& frames_;
  const StepLayout& layout_;
  std::optional<Moment> first_rerun_;
};

int64_t PeakOfHost(const OffloadUse& use) {
  int64_t bytes = 0;
  int64_t peak = 0;
  for (const OffloadEvent& event : use.events) {
    const int64_t moved = use.storages[event.moved].bytes;
    if (event.kind == OffloadEvent::Kind::kSend) bytes += moved;
    if (event.kind == OffloadEvent::Kind::kUse ||
        event.kind == OffloadEvent::Kind::kDrop) {
      bytes -= moved;
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

std::vector<int32_t> KeptStorages(const Frame& frame, int32_t op,
                                  const Trace& trace) {
  const TraceOperator& now = trace.operators[op];
  std::vector<int32_t> storages;
  if (const std::vector<int32_t>* kept = frame.KeptResults(op)) {
    for (const int32_t result : *kept) {
      AddOnce(storages, trace.tensors[now.results[result]].storage);
    }
    return storages;
  }
  for (const int32_t t : now.results) {
    AddOnce(storages, trace.tensors[t].storage);
  }
  for (const int32_t s : now.outputs) AddOnce(storages, s);
  return storages;
}

std::vector<MovedStorage> FindMovedStorages(const PreparedTrace& prepared,
                                            const Frames& frames,
                                            const StepLayout& layout) {
  std::vector<MovedStorage> moved;
  std::optional<MomentsOfFrames> moments;
  for (int32_t f = 0; f < std::ssize(frames.list); ++f) {
    const Frame& frame = frames.list[f];
    if (!frame.has_offload) continue;
    if (!moments) moments.emplace(frames, layout);
    MovedStorage of_frame = moments->Of(f);
    const auto first = std::ssize(moved);
    for (int32_t op = frame.call->start; op < frame.call->end; ++op) {
      if (!frame.Offloads(op)) continue;
      for (const int32_t s : KeptStorages(frame, op, *prepared.trace)) {
        const bool is_moved =
            std::any_of(moved.begin() + first, moved.end(),
                        [&](const MovedStorage& m) { return m.storage == s; });
        if (is_moved) continue;
        of_frame.storage = s;
        of_frame.op = op;
        moved.push_back(of_frame);
      }
    }
  }
  return moved;
}

std::span<const MovedStorage> MovedBy(int32_t frame,
                                      const std::vector<MovedStorage>& moved) {
  const auto found =
      std::ranges::equal_range(moved, frame, {}, &MovedStorage::frame);
  return {found.begin(), found.end()};
}

OffloadUse UseOf(const std::vector<MovedStorage>& moved,
                 const PreparedTrace& prepared, const Frames& frames,
                 const StepLayout& layout) {
  using enum OffloadEvent::Kind;
  OffloadUse use;
  // What a frame needs at once is fetched before what comes early.
  std::vector<std::tuple<Moment, OffloadEvent::Kind, int32_t, int32_t>> events;
  for (int32_t k = 0; k < std::ssize(moved); ++k) {
    const MovedStorage& now = moved[k];
    const int64_t bytes = prepared.trace->storages[now.storage].bytes;
    use.storages.push_back({.call = frames.list[now.frame].call_index,
                            .storage = now.storage,
                            .op = now.op,
                            .bytes = bytes});
    use.sent_bytes += bytes;
    const auto add = [&](const Moment& moment, OffloadEvent::Kind kind) {
      events.emplace_back(moment, kind, kind == kFetch ? -now.frame : now.frame,
                          k);
    };
    add({.step = layout.step_of_operator[now.op] + 1}, kSend);
    if (now.release) add(*now.release, kRelease);
    if (now.fetch) add(*now.fetch, kFetch);
    if (now.use) {
      add(*now.use, kUse);
    } else {
      add({.step = now.frame_end}, kDrop);
    }
  }
  std::ranges::sort(events);
  for (const auto& [moment, kind, frame, k] : events) {
    use.events.push_back({.kind = kind, .step = moment.step, .moved = k});
  }
  use.host_peak_bytes = PeakOfHost(use);
  return use;
}

}  // namespace acplan::graph
