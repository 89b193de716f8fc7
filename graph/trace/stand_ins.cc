#include "graph/trace/stand_ins.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

// Follows a call as it runs again and finds what is a stand-in then.
//
// A storage is lost once what it should hold is not there: an operator that
// creates it is skipped or does not keep it, or one that writes to it in place
// is skipped. What is from outside of the call is never lost, since the forward
// pass wrote to it. Nothing finds a lost storage again.
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

// What must be there when a frame has run again. `tensor` may be -1: any of the
// storage that there is at the time.
struct Need {
  int32_t storage = 0;
  int32_t tensor = -1;
  int32_t time = 0;
  std::string_view user = {};  // up to its verb
  int32_t inner = kNoFrame;    // the user is this frame's module
};

std::vector<Need> NeedsAtTheEnd(const Frames& frames, int32_t f,
                                const Trace& trace) {
  const Frame& frame = frames.list[f];
  std::vector<Need> needs;
  for (const int32_t k : frame.saved) {
    const SavedTensor& saved = trace.saved[k];
    if (saved.unpacked == kNever) continue;
    needs.push_back({.storage = saved.storage,
                     .tensor = saved.tensor,
                     .time = saved.packed,
                     .user = "backward asks for"});
  }
  for (int32_t g = f + 1; g < frame.subtree_end; ++g) {
    const Frame& inner = frames.list[g];
    const bool asks = inner.parent == f && inner.IsSavedByParent() &&
                      inner.rerun_time != kNever;
    if (!asks) continue;
    for (const int32_t t : inner.call->arguments) {
      needs.push_back({.storage = trace.tensors[t].storage,
                       .tensor = t,
                       .time = inner.call->start,
                       .user = "inside of it runs again and is given",
                       .inner = g});
    }
  }
  return needs;
}

// What comes from outside of all units was written to in the forward pass, and
// is not made again without that.
bool WritesToWhatAFrameAroundMakes(const Frames& frames, int32_t f,
                                   const TraceOperator& op,
                                   const Trace& trace) {
  int32_t outer = f;
  while (frames.list[outer].parent != kNoFrame) {
    outer = frames.list[outer].parent;
  }
  return std::ranges::any_of(op.mutates, [&](int32_t s) {
    const int32_t born = trace.storages[s].born;
    return frames.list[outer].call->start <= born &&
           born < frames.list[f].call->start;
  });
}

}  // namespace

class StandInFinder::Rerun {
 public:
  Rerun(StandInFinder& finder, int32_t f)
      : to_(finder),
        frames_(finder.frames_),
        f_(f),
        frame_(frames_.list[f]),
        trace_(finder.trace_) {}

  StandIns Find() && {
    const int32_t end = std::min(frame_.rerun_stop, frame_.call->end);
    std::optional<std::string> reason;
    for (int32_t op = frame_.call->start; op < end && !reason; ++op) {
      reason = Follow(op);
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
  std::string Place(int32_t op) const {
    return fmt::format("operator {} ({})", op - frame_.call->start,
                       trace_.operator_names[trace_.operators[op].name]);
  }

  // Why a policy is wrong that loses what `op` makes: `user` says who needs it,
  // up to its verb.
  std::string Lost(int32_t op, int32_t storage, std::string_view user) const {
    return fmt::format(
        "{} {}: {} what it {}", Place(op),
        frame_.Saves(op) ? "must keep another result" : "cannot be skipped",
        user, IsWrittenBy(op, storage) ? "writes to in place" : "makes");
  }

  bool IsWrittenBy(int32_t op, int32_t storage) const {
    const std::vector<int32_t>& written = trace_.operators[op].mutates;
    return std::ranges::find(written, storage) != written.end();
  }

  std::optional<std::string> Follow(int32_t op) {
    const TraceOperator& now = trace_.operators[op];
    if (frame_.RunsAgain(op)) {
      if (!now.view) return RefusalOfReads(op);
      if (!IsViewOfStandIn(now)) return std::nullopt;
      result_.hollow_views.push_back(op);
    } else if (frame_.Skips(op) && now.outputs.empty() && now.mutates.empty()) {
      return fmt::format(
          "{} cannot be skipped: it returns no tensor, and nothing stands in "
          "for what it does",
          Place(op));
    } else if (WritesToWhatAFrameAroundMakes(frames_, f_, now, trace_)) {
      return Place(op) +
             " must run again: it writes in place to what a unit around this "
             "one makes again";
    }
    Lose(op);
    return std::nullopt;
  }

  std::optional<std::string> RefusalOfReads(int32_t op) const {
    const TraceOperator& reader = trace_.operators[op];
    for (const std::vector<int32_t>* read : {&reader.reads, &reader.mutates}) {
      for (const int32_t s : *read) {
        const int32_t by = LostBy(s, op);
        if (by < 0) continue;
        return Lost(by, s, Place(op) + ", which runs again, reads");
      }
    }
    return std::nullopt;
  }

  // The operator that lost what a reader at a time may read of a storage, or
  // -1.
  int32_t LostBy(int32_t storage, int32_t time) const {
    if (to_.lost_[storage] >= 0) return to_.lost_[storage];
    const HiddenView& hidden = to_.hidden_[storage];
    return hidden.until >= time ? hidden.op : -1;
  }

  bool IsViewOfStandIn(const TraceOperator& view) const {
    // What is not written to is there, and so is a view of it.
    const auto is_not_made = [&](int32_t s) {
      return to_.lost_[s] >= 0 && !IsWrittenBy(to_.lost_[s], s);
    };
    return std::ranges::any_of(view.outputs, is_not_made) ||
           std::ranges::any_of(view.results, [&](int32_t t) {
             return IsStandIn(trace_.tensors[t].base);
           });
  }

  bool IsStandIn(int32_t tensor) const {
    return tensor >= 0 && to_.stand_ins_[tensor] >= 0;
  }

  void LoseStorage(int32_t storage, int32_t op) {
    int32_t& lost = to_.lost_[storage];
    if (lost < 0) lost = op;
  }

  // What a skipped or saved operator, or a view of a stand-in, does not make.
  void Lose(int32_t op) {
    const TraceOperator& now = trace_.operators[op];
    const bool is_saved = frame_.Saves(op);
    for (const int32_t s : now.creates) {
      if (!is_saved || !KeepsOutput(frame_, op, s, trace_)) LoseStorage(s, op);
    }
    if (!is_saved) {
      for (const int32_t s : now.mutates) {
        if (trace_.storages[s].born >= frame_.call->start) LoseStorage(s, op);
      }
    }
    const std::vector<int32_t>* kept = frame_.KeptResults(op);
    for (int32_t result = 0; result < std::ssize(now.results); ++result) {
      const int32_t t = now.results[result];
      const bool is_kept =
          is_saved &&
          (kept == nullptr || std::ranges::find(*kept, result) != kept->end());
      if (is_kept) {
        to_.is_kept_[t] = 1;
      } else if (!IsArgumentOf(now, trace_.tensors[t])) {
        Hide(t, op);
      }
    }
  }

  // An operator in place returns its argument.
  bool IsArgumentOf(const TraceOperator& op, const TraceTensor& tensor) const {
    return std::ranges::find(op.mutates, tensor.storage) != op.mutates.end() &&
           !IsStandIn(tensor.base);
  }

  void Hide(int32_t tensor, int32_t op) {
    to_.stand_ins_[tensor] = op;
    const TraceTensor& now = trace_.tensors[tensor];
    HiddenView& hidden = to_.hidden_[now.storage];
    if (now.scope_end > hidden.until) {
      hidden = {.op = op, .until = now.scope_end};
    }
  }

  std::optional<std::string> LostAtTheEnd() const {
    for (const Need& need : NeedsAtTheEnd(frames_, f_, trace_)) {
      const int32_t by = LostBy(need);
      if (by < 0) continue;
      const std::string user =
          need.inner < 0 ? std::string(need.user)
                         : fmt::format("module '{}' {}",
                                       ModuleOf(*frames_.list[need.inner].call),
                                       need.user);
      return Lost(by, need.storage, user);
    }
    return std::nullopt;
  }

  // The operator that lost what is needed, or -1.
  int32_t LostBy(const Need& need) const {
    const int32_t lost = to_.lost_[need.storage];
    if (need.tensor < 0) return LostBy(need.storage, need.time);
    // What is kept is the original. RerunRefusal sees to it that all that
    // writes to it is saved.
    if (to_.is_kept_[need.tensor] != 0) return -1;
    return lost >= 0 ? lost : to_.stand_ins_[need.tensor];
  }

  // The finder is as it was before the frame.
  void Forget() {
    for (int32_t op = frame_.call->start; op < frame_.call->end; ++op) {
      const TraceOperator& now = trace_.operators[op];
      for (const int32_t s : now.creates) to_.lost_[s] = -1;
      for (const int32_t s : now.mutates) to_.lost_[s] = -1;
      for (const int32_t t : now.results) {
        to_.stand_ins_[t] = -1;
        to_.is_kept_[t] = 0;
        to_.hidden_[trace_.tensors[t].storage] = {};
      }
    }
  }

  StandInFinder& to_;
  const Frames& frames_;
  int32_t f_;
  const Frame& frame_;
  const Trace& trace_;
  StandIns result_;
};

StandInFinder::StandInFinder(const Frames& frames,
                             const PreparedTrace& prepared)
    : frames_(frames),
      trace_(*prepared.trace),
      lost_(trace_.storages.size(), -1),
      stand_ins_(trace_.tensors.size(), -1),
      is_kept_(trace_.tensors.size(), 0),
      hidden_(trace_.storages.size()) {}

StandIns StandInFinder::Of(int32_t f) { return Rerun(*this, f).Find(); }

}  // namespace acplan::graph
