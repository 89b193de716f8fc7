#include "graph/trace/moved_storages.h"

#include <algorithm>
#include <tuple>
#include <utility>

// Finds when offloaded storages go and come back.
//
// Frames outside of all others are calls that do not overlap, so their order in
// the list is that in which they begin and end. A frame's storages depend on two of
// them, the frame and the next one, and so are found from the step's layout alone,
// without the lives.

namespace acplan::graph {
namespace {

void AddOnce(std::vector<StorageId>& storages, StorageId storage) {
  if (std::ranges::find(storages, storage) == storages.end()) {
    storages.push_back(storage);
  }
}

Moment BeginOfRerun(const StepLayout& layout, FrameId f) {
  const size_t place = layout.reruns[f].first_place;
  return {.step = layout.rerun_steps[place],
          .rerun = static_cast<int64_t>(place)};
}

std::optional<Moment> Earlier(const std::optional<Moment>& a,
                              const std::optional<Moment>& b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// The moments of frames that are outside of all others and offload something.
class MomentsOfFrames {
 public:
  MomentsOfFrames(const Frames& frames, const StepLayout& layout)
      : frames_(frames), layout_(layout) {
    for (const FrameId f : frames.list.ids()) {
      first_rerun_ = Earlier(first_rerun_, RerunOf(f));
    }
  }

  // Returns the moments of a frame, without storage and operator.
  MovedStorage MomentsFor(FrameId f) const {
    const Frame& frame = frames_.list[f];
    const FrameId next = frame.subtree_end;
    const bool is_last = next >= frames_.list.end_id();
    MovedStorage moments = {.frame = f,
                            .use = RerunOf(f),
                            .frame_end = layout_.StepAt(frame.release_time)};
    const Moment end = {.step = moments.frame_end};
    const std::optional<Moment> release =
        is_last ? first_rerun_
                : Moment{layout_.StepAt(frames_.list[next].call->end)};
    moments.release = Earlier(release, moments.use);
    moments.fetch =
        Earlier(is_last ? std::nullopt : RerunOf(next), moments.use);
    if (moments.use) return moments;
    if (moments.release && *moments.release >= end) moments.release.reset();
    if (moments.fetch && *moments.fetch >= end) moments.fetch.reset();
    return moments;
  }

 private:
  std::optional<Moment> RerunOf(FrameId f) const {
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
    const int64_t moved_bytes = use.storages[event.storage].bytes;
    if (event.kind == OffloadEvent::Kind::kSend) bytes += moved_bytes;
    if (event.kind == OffloadEvent::Kind::kUse ||
        event.kind == OffloadEvent::Kind::kDrop) {
      bytes -= moved_bytes;
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

std::vector<StorageId> KeptStorages(const Frame& frame, OperatorId op,
                                    const Trace& trace) {
  const TraceOperator& now = trace.operators[op];
  std::vector<StorageId> storages;
  if (const std::vector<int32_t>* kept_results = frame.KeptResults(op)) {
    for (const int32_t result : *kept_results) {
      AddOnce(storages, trace.tensors[now.results[result]].storage);
    }
    return storages;
  }
  for (const TensorId t : now.results) {
    AddOnce(storages, trace.tensors[t].storage);
  }
  for (const StorageId s : now.outputs) AddOnce(storages, s);
  return storages;
}

MovedStorages FindMovedStorages(const PreparedTrace& prepared,
                                const Frames& frames,
                                const StepLayout& layout) {
  MovedStorages moves;
  std::optional<MomentsOfFrames> moments;
  for (const FrameId f : frames.list.ids()) {
    const Frame& frame = frames.list[f];
    if (!frame.has_offload) continue;
    if (!moments) moments.emplace(frames, layout);
    MovedStorage of_frame = moments->MomentsFor(f);
    const auto first = std::ssize(moves);
    const auto add = [&](StorageId s, OperatorId op) {
      const bool is_moved =
          std::any_of(moves.begin() + first, moves.end(),
                      [&](const MovedStorage& m) { return m.storage == s; });
      if (is_moved) return;
      of_frame.storage = s;
      of_frame.op = op;
      moves.push_back(of_frame);
    };
    for (const StorageId s : frame.offloaded_arguments) add(s, kNone);
    for (const OperatorId op : frame.call->Operators()) {
      if (!frame.Offloads(op)) continue;
      for (const StorageId s : KeptStorages(frame, op, *prepared.trace)) {
        add(s, op);
      }
    }
  }
  return moves;
}

IdRange<MovedId> MovedBy(FrameId frame, const MovedStorages& moves) {
  const auto of_frame =
      std::ranges::equal_range(moves, frame, {}, &MovedStorage::frame);
  return {IdAt<MovedId>(of_frame.begin() - moves.begin()),
          IdAt<MovedId>(of_frame.end() - moves.begin())};
}

OffloadUse UseOf(const MovedStorages& moves, const PreparedTrace& prepared,
                 const Frames& frames, const StepLayout& layout) {
  using enum OffloadEvent::Kind;
  OffloadUse use;
  // Storages that a frame needs at once are fetched before those that come early, so
  // fetches go by descending frame. A call sends its arguments after all that happens
  // as the call before it ends.
  constexpr int kBeginOfCall = static_cast<int>(kDrop) + 1;
  std::vector<std::tuple<Moment, int, int32_t, MovedId, OffloadEvent::Kind>>
      events;
  for (const MovedId k : moves.ids()) {
    const MovedStorage& now = moves[k];
    const int64_t bytes = prepared.trace->storages[now.storage].bytes;
    use.storages.push_back({.call = frames.list[now.frame].call_id,
                            .storage = now.storage,
                            .op = now.op,
                            .bytes = bytes});
    use.sent_bytes += bytes;
    const bool is_argument = now.op == kNone;
    const auto add = [&](const Moment& moment, OffloadEvent::Kind kind) {
      const int32_t frame = IndexOf(now.frame);
      const int order =
          kind == kSend && is_argument ? kBeginOfCall : static_cast<int>(kind);
      events.emplace_back(moment, order, kind == kFetch ? -frame : frame, k,
                          kind);
    };
    add({.step = is_argument ? layout.StepAt(frames.list[now.frame].call->start)
                             : Next(layout.step_of_operator[now.op])},
        kSend);
    if (now.release) add(*now.release, kRelease);
    if (now.fetch) add(*now.fetch, kFetch);
    if (now.use) {
      add(*now.use, kUse);
    } else {
      add({.step = now.frame_end}, kDrop);
    }
  }
  std::ranges::sort(events);
  for (const auto& [moment, order, frame, k, kind] : events) {
    use.events.push_back({.kind = kind, .step = moment.step, .storage = k});
  }
  use.host_peak_bytes = PeakOfHost(use);
  return use;
}

}  // namespace acplan::graph
