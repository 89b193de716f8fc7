#include "graph/trace/stand_ins.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

// Follows a call as it runs again and finds what is a stand-in then.
//
// A storage is lost once what it should hold is not there: an operator that
// creates it is skipped or does not keep it, or one that writes to it in place
// is skipped. A storage from outside of the call is never lost, since the forward pass
// wrote to it. Nothing finds a lost storage again.
//
// A tensor may be a stand-in although its storage is not lost, where a view is
// skipped; and a saved view is there although its storage is lost, as the
// operator that made that is skipped. The trace tells of the tensors that
// autograd saved which they are, but of those that an operator reads only the
// storages. So an operator that runs again is taken to read any tensor of its
// storages that the program still holds: a plan may be refused that would do,
// and none is accepted that reads a stand-in.
//
// Backward asks for a saved tensor after the whole recomputation, so its
// storage must not be lost at the end: a write in place after the saving that
// is skipped would be missing, too. The same is so for the arguments of frames
// inside that run again.

namespace acplan::graph {
namespace {

// Something that must be there when a frame has run again. No tensor: any of the
// storage that there is at the time.
struct Need {
  StorageId storage = {};
  TensorId tensor = kNone;
  Time time = 0;
  std::string_view user = {};  // up to its verb, before "its result"
  FrameId inner = kNone;       // the user is this frame's module
};

std::vector<Need> NeedsAtTheEnd(const Frames& frames, FrameId f,
                                const Trace& trace) {
  const Frame& frame = frames.list[f];
  std::vector<Need> needs;
  for (const SavedId k : frame.saved) {
    const SavedTensor& saved = trace.saved[k];
    if (saved.unpacked == kNever) continue;
    needs.push_back({.storage = saved.storage,
                     .tensor = saved.tensor,
                     .time = saved.packed,
                     .user = "the backward pass needs"});
  }
  for (const FrameId g : IdRange(Next(f), frame.subtree_end)) {
    const Frame& inner = frames.list[g];
    const bool asks = inner.parent == f && inner.IsSavedByParent() &&
                      inner.rerun_time != kNever;
    if (!asks) continue;
    for (const TensorId t : inner.call->arguments) {
      needs.push_back({.storage = trace.tensors[t].storage,
                       .tensor = t,
                       .time = inner.call->start,
                       .user = "inside, which runs again, receives",
                       .inner = g});
    }
  }
  return needs;
}

bool WritesTo(const TraceOperator& op, StorageId storage) {
  return std::ranges::find(op.mutates, storage) != op.mutates.end();
}

// Returns whether an operator writes to a storage that a frame around this one makes. A
// storage from outside of all units was written to in the forward pass, and is not made
// again without that.
bool WritesToWhatAFrameAroundMakes(const Frames& frames, FrameId f,
                                   const TraceOperator& op,
                                   const Trace& trace) {
  FrameId outer = f;
  while (frames.list[outer].parent != kNone) {
    outer = frames.list[outer].parent;
  }
  return std::ranges::any_of(op.mutates, [&](StorageId s) {
    const OperatorId born = trace.storages[s].born;
    return frames.list[outer].call->start <= StartOf(born) &&
           StartOf(born) < frames.list[f].call->start;
  });
}

}  // namespace

class StandInFinder::Rerun {
 public:
  Rerun(StandInFinder& finder, FrameId f)
      : finder_(finder),
        frames_(finder.frames_),
        f_(f),
        frame_(frames_.list[f]),
        trace_(finder.trace_) {}

  StandIns Find() && {
    const Time end = std::min(frame_.rerun_stop, frame_.call->end);
    std::optional<std::string> reason;
    for (const OperatorId op : OperatorsIn(frame_.call->start, end)) {
      reason = Follow(op);
      if (reason) break;
    }
    if (!reason) reason = LostAtTheEnd();
    if (reason) {
      result_.refusal =
          fmt::format("module '{}': {}", ModuleOf(*frame_.call), *reason);
    }
    Forget();
    return std::move(result_);
  }

 private:
  const std::string& ModuleOf(const TraceCall& call) const {
    return trace_.modules[call.module].fqn;
  }

  // "operator 3 (aten.add_.Tensor)", counted from the start of the call.
  std::string Place(OperatorId op) const {
    return fmt::format("operator {} ({})", frame_.call->PlaceOf(op),
                       trace_.operator_names[trace_.operators[op].name]);
  }

  // Returns why a policy is wrong that loses what `op` makes: `user` says who needs it,
  // up to its verb.
  std::string TextOfLoss(OperatorId op, StorageId storage,
                         std::string_view user) const {
    if (frame_.Saves(op)) {
      return fmt::format("{} must keep another result, because {} it",
                         Place(op), user);
    }
    return fmt::format(
        "{} cannot be skipped, because {} {}; save it or run it again",
        Place(op), user,
        WritesTo(trace_.operators[op], storage)
            ? "the tensor to which it writes in place"
            : "its result");
  }

  std::optional<std::string> Follow(OperatorId op) {
    const TraceOperator& now = trace_.operators[op];
    if (frame_.RunsAgain(op)) {
      if (!now.view) return RefusalOfReads(op);
      if (!IsViewOfStandIn(now)) return std::nullopt;
      result_.hollow_views.push_back(op);
    } else if (frame_.Skips(op) && now.outputs.empty() && now.mutates.empty()) {
      return fmt::format(
          "{} cannot be skipped, because it returns no tensor for which there "
          "could be a stand-in; run it again",
          Place(op));
    } else if (WritesToWhatAFrameAroundMakes(frames_, f_, now, trace_)) {
      return Place(op) +
             " must run again, because it writes in place to a tensor that an "
             "enclosing unit recomputes";
    }
    Lose(op);
    return std::nullopt;
  }

  std::optional<std::string> RefusalOfReads(OperatorId op) const {
    const TraceOperator& reader = trace_.operators[op];
    for (const std::vector<StorageId>* read :
         {&reader.reads, &reader.mutates}) {
      for (const StorageId s : *read) {
        const OperatorId loser = LoserOf(s, StartOf(op));
        if (loser == kNone) continue;
        return TextOfLoss(loser, s, Place(op) + ", which runs again, reads");
      }
    }
    return std::nullopt;
  }

  // Returns the operator that lost what a reader at a time may read of a storage, if
  // any.
  OperatorId LoserOf(StorageId storage, Time time) const {
    if (IsLost(storage)) return finder_.losers_[storage];
    const HiddenView& hidden = finder_.hidden_[storage];
    return hidden.until >= time ? hidden.op : kNone;
  }

  bool IsLost(StorageId storage) const {
    return finder_.losers_[storage] != kNone;
  }

  bool IsViewOfStandIn(const TraceOperator& view) const {
    // A storage that is lost for want of a write is there, and so is a view of it.
    const auto is_not_made = [&](StorageId s) {
      return IsLost(s) && !WritesTo(trace_.operators[finder_.losers_[s]], s);
    };
    return std::ranges::any_of(view.outputs, is_not_made) ||
           std::ranges::any_of(view.results, [&](TensorId t) {
             return IsStandIn(trace_.tensors[t].base);
           });
  }

  bool IsStandIn(TensorId tensor) const {
    return tensor != kNone && finder_.hiders_[tensor] != kNone;
  }

  void LoseStorage(StorageId storage, OperatorId op) {
    if (!IsLost(storage)) finder_.losers_[storage] = op;
  }

  // Loses what a skipped or saved operator, or a view of a stand-in, does not make.
  void Lose(OperatorId op) {
    const TraceOperator& now = trace_.operators[op];
    const bool is_saved = frame_.Saves(op);
    for (const StorageId s : now.creates) {
      if (!is_saved || !KeepsOutput(frame_, op, s, trace_)) LoseStorage(s, op);
    }
    for (const StorageId s : now.mutates) {
      const bool is_older = trace_.storages[s].IsOlderThan(frame_.call->start);
      if (!is_saved && !is_older) LoseStorage(s, op);
    }
    const std::vector<int32_t>* kept_places = frame_.KeptResults(op);
    for (int32_t result = 0; result < std::ssize(now.results); ++result) {
      const TensorId t = now.results[result];
      const bool is_kept =
          is_saved &&
          (kept_places == nullptr ||
           std::ranges::find(*kept_places, result) != kept_places->end());
      if (is_kept) {
        finder_.is_kept_[t] = true;
      } else if (!WritesTo(now, trace_.tensors[t].storage) ||
                 IsStandIn(trace_.tensors[t].base)) {
        Hide(t,
             op);  // all but its argument, which an operator in place returns
      }
    }
  }

  void Hide(TensorId tensor, OperatorId op) {
    finder_.hiders_[tensor] = op;
    const TraceTensor& now = trace_.tensors[tensor];
    HiddenView& hidden = finder_.hidden_[now.storage];
    if (now.scope_end > hidden.until) {
      hidden = {.op = op, .until = now.scope_end};
    }
  }

  std::optional<std::string> LostAtTheEnd() const {
    for (const Need& need : NeedsAtTheEnd(frames_, f_, trace_)) {
      const OperatorId loser = LoserOf(need);
      if (loser == kNone) continue;
      const std::string user =
          need.inner == kNone
              ? std::string(need.user)
              : fmt::format("module '{}' {}",
                            ModuleOf(*frames_.list[need.inner].call),
                            need.user);
      return TextOfLoss(loser, need.storage, user);
    }
    return std::nullopt;
  }

  // Returns the operator that lost what is needed, if any.
  OperatorId LoserOf(const Need& need) const {
    if (need.tensor == kNone) return LoserOf(need.storage, need.time);
    // A kept tensor is the original. RerunRefusal sees to it that all that writes to it
    // is saved.
    if (finder_.is_kept_[need.tensor]) return kNone;
    return IsLost(need.storage) ? finder_.losers_[need.storage]
                                : finder_.hiders_[need.tensor];
  }

  // Leaves the finder as it was before the frame.
  void Forget() {
    for (const OperatorId op : frame_.call->Operators()) {
      const TraceOperator& now = trace_.operators[op];
      for (const StorageId s : now.creates) finder_.losers_[s] = kNone;
      for (const StorageId s : now.mutates) finder_.losers_[s] = kNone;
      for (const TensorId t : now.results) {
        finder_.hiders_[t] = kNone;
        finder_.is_kept_[t] = false;
        finder_.hidden_[trace_.tensors[t].storage] = {};
      }
    }
  }

  StandInFinder& finder_;
  const Frames& frames_;
  FrameId f_;
  const Frame& frame_;
  const Trace& trace_;
  StandIns result_;
};

StandInFinder::StandInFinder(const Frames& frames,
                             const PreparedTrace& prepared)
    : frames_(frames),
      trace_(*prepared.trace),
      losers_(trace_.storages.size(), kNone),
      hiders_(trace_.tensors.size(), kNone),
      is_kept_(trace_.tensors.size(), false),
      hidden_(trace_.storages.size()) {}

StandIns StandInFinder::Find(FrameId f) { return Rerun(*this, f).Find(); }

}  // namespace acplan::graph
