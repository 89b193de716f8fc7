#include "graph/trace/lifetimes.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "graph/trace/rerun_lives.h"
#include "graph/trace/trace.h"

// Finds until when each storage lives.
//
// A life ends when the last of its holders lets go of it. So every life begins
// with an empty end, and every holder extends it (Hold): the end is the maximum
// over the holders, whatever the order in which they come. Holders of what the
// trace has are the program, autograd outside of the frames, the arguments of
// the frames, and the results that policies save. This is all that there is
// without frames that run again.
//
// A rerun makes some of a frame's storages anew. Each of these copies is a life
// of its own beside the original's. Which life a storage means depends on the
// frame: in a rerun it is the copy for what runs again, the original for what a
// policy saved, and for an argument what the rerun of the frame around it made
// of it, if that runs again, too. RerunLives answers this while one frame is at
// hand. Where a policy saves one of two views of the same storage, the views
// are of two lives, so there it is the tensors that have lives.
//
// Frames are visited from the ones around to the ones inside, so that the lives
// of a frame's arguments are known before its own holders are.
//
// Offload. A frame holds a storage that it offloads until the release. From the
// fetch on the storage has a life of its own, which every kept result on it means when
// the frame runs again.
//
// Attributes. A module may keep a tensor beyond the step. A rerun leaves the
// attribute as it was: the original lives on. The copy ends with the rerun, as
// does all that the program holds in it.
//
// These rules are PyTorch's, found by measuring it:
// tests/graph/simulation_test.cc compares with every allocation of real steps.

namespace acplan::graph {
namespace {

// Later than every step.
constexpr StepId kNoStep = StepId{kNever};

bool Contains(const std::vector<StorageId>& values, StorageId value) {
  return std::ranges::find(values, value) != values.end();
}

// Autograd holds what a rerun saves as long as that lasts, and from then until
// the backward node that asks for it lets go of it.
StepId AutogradEnd(const SavedTensor& saved, FrameId f, const Frame& frame,
                   const StepLayout& layout) {
  if (saved.released <= frame.rerun_time) {
    return layout.RerunStepAt(f, frame, saved.released);
  }
  const Time node_end =
      saved.unpacked == kNever ? saved.released : saved.local_end;
  return std::max(layout.reruns[f].end, layout.StepAt(node_end));
}

struct Lives {
  // Extends a life, if it is one, to a step.
  void Hold(LifeId life, StepId end) {
    if (life == kNone) return;
    list[life].end = std::max(list[life].end, end);
  }

  LifeList list;
};

// Returns the life in which a storage comes back.
LifeId FetchedLife(MovedId moved_storage, const Trace& trace) {
  return IdAt<LifeId>(trace.storages.size() + IndexOf(moved_storage));
}

// The lives of the storages as the trace has them, and of those that come back
// from the host, with all their holders but those of reruns.
class OriginalLives {
 public:
  OriginalLives(const PreparedTrace& prepared, const Frames& frames,
                const StepLayout& layout, const MovedStorages& moves)
      : prepared_(prepared),
        trace_(*prepared.trace),
        frames_(frames),
        layout_(layout),
        moves_(moves) {}

  Lives Find() && {
    lives_.list.reserve(trace_.storages.size() + moves_.size() +
                        layout_.steps.size() - trace_.operators.size());
    for (const StorageId s : trace_.storages.ids()) {
      const OperatorId born = trace_.storages[s].born;
      lives_.list.push_back(
          {s, born == kNone ? StepId{0} : layout_.step_of_operator[born],
           layout_.StepAt(prepared_.held_until[s])});
    }
    for (const MovedStorage& now : moves_) {
      const StepId begin = now.fetch ? now.fetch->step : kNoStep;
      lives_.list.push_back({now.storage, begin, StepId{0}});
    }
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.call == kNone || frames_.innermost[saved.call] == kNone) {
        lives_.Hold(OriginalLife(saved.storage),
                    layout_.StepAt(HeldByAutogradUntil(saved)));
      }
    }
    for (const FrameId f : frames_.list.ids()) HoldByFrame(f);
    return std::move(lives_);
  }

 private:
  void HoldByFrame(FrameId f) {
    const Frame& frame = frames_.list[f];
    const StepId release_step = layout_.StepAt(frame.release_time);
    for (const StorageId s : frame.call->inputs) {
      const bool is_saved_by_parent =
          frame.parent != kNone && Contains(frame.arguments, s);
      if (!is_saved_by_parent) HoldArgument(f, s, release_step);
    }
    if (!frame.HasPolicy()) return;
    // A saved result waits for its operator's turn in the rerun, or for the end
    // of the frame where no rerun gets there.
    for (const OperatorId op : frame.call->Operators()) {
      if (!frame.Saves(op)) continue;
      const bool is_reached =
          layout_.reruns[f].is_laid_out && StartOf(op) < frame.rerun_stop;
      const StepId end =
          is_reached ? layout_.RerunStepAt(f, frame, EndOf(op)) : release_step;
      for (const StorageId s : trace_.operators[op].outputs) {
        const bool is_kept = frame.KeptResults(op) == nullptr ||
                             KeepsOutput(frame, op, s, trace_);
        if (is_kept) HoldKept(f, s, end);
      }
    }
  }

  void HoldArgument(FrameId f, StorageId storage, StepId end) {
    if (Contains(frames_.list[f].offloaded_arguments, storage)) {
      HoldKept(f, storage, end);
    } else {
      lives_.Hold(OriginalLife(storage), end);
    }
  }

  void HoldKept(FrameId f, StorageId storage, StepId end) {
    if (frames_.list[f].has_offload) {
      for (const MovedId moved_storage : MovedBy(f, moves_)) {
        const MovedStorage& now = moves_[moved_storage];
        if (now.storage != storage) continue;
        lives_.Hold(FetchedLife(moved_storage, trace_), end);
        if (now.release) end = std::min(end, now.release->step);
        break;
      }
    }
    lives_.Hold(OriginalLife(storage), end);
  }

  const PreparedTrace& prepared_;
  const Trace& trace_;
  const Frames& frames_;
  const StepLayout& layout_;
  const MovedStorages& moves_;
  Lives lives_;
};

// Adds to the lives of the originals those that reruns make, and the holders
// that reruns bring.
class RerunVisitor {
 public:
  RerunVisitor(const PreparedTrace& prepared, const Frames& frames,
               const StepLayout& layout, const MovedStorages& moves)
      : prepared_(prepared),
        frames_(frames),
        layout_(layout),
        moves_(moves),
        lives_(OriginalLives(prepared, frames, layout, moves).Find()),
        now_(prepared) {
    argument_lives_.reserve(frames.list.size());
    for (const Frame& frame : frames.list) {
      std::vector<LifeId>& lives = argument_lives_.emplace_back();
      lives.reserve(frame.arguments.size());
      for (const StorageId s : frame.arguments) {
        lives.push_back(OriginalLife(s));
      }
    }
  }

  LifeList Visit() && {
    for (const FrameId f : frames_.list.ids()) {
      if (layout_.reruns[f].is_laid_out) AddRerun(f);
    }
    return std::move(lives_.list);
  }

 private:
  const Trace& trace() const { return *prepared_.trace; }

  // Adds what a frame makes anew, and all that holds it.
  void AddRerun(FrameId f) {
    const Frame& frame = frames_.list[f];
    const LifeId first_copy = lives_.list.end_id();
    // An argument that is given twice is the first of the two.
    for (size_t k = frame.arguments.size(); k-- > 0;) {
      now_.Set(frame.arguments[k], argument_lives_[f][k]);
    }
    AddCopies(f);
    for (const MovedId k : MovedBy(f, moves_)) {
      const LifeId life = FetchedLife(k, trace());
      if (moves_[k].op == kNone) now_.Set(moves_[k].storage, life);
      now_.SetFetched(frame, moves_[k].storage, life);
    }
    now_.SetTensors(frame);
    HoldByTheProgram(f);
    HoldByAutograd(f);
    HoldByFramesInside(f);
    for (const StorageId s : frame.arguments) now_.Reset(s);
    for (const StorageId s : frame.offloaded_arguments) now_.Reset(s);
    for (const LifeId life : IdRange(first_copy, lives_.list.end_id())) {
      now_.Reset(lives_.list[life].storage);
    }
    now_.ResetFetched();
    if (!frame.has_stand_ins) return;
    for (const OperatorId op :
         OperatorsIn(frame.call->start, frame.rerun_stop)) {
      for (const StorageId s : prepared_.CreatedBy(op)) now_.Reset(s);
    }
  }

  void AddCopies(FrameId f) {
    const Frame& frame = frames_.list[f];
    const auto add = [&](OperatorId op, StepId step) {
      for (const StorageId s : prepared_.CreatedBy(op)) {
        now_.Set(s, lives_.list.Add({s, step, step}));
      }
    };
    for (const OperatorId op :
         OperatorsIn(frame.call->start, frame.rerun_stop)) {
      if (frame.RunsAgain(op)) {
        add(op, layout_.RerunStepOf(f, frame, op));
      } else if (frame.has_stand_ins) {
        now_.SetStandIns(frame, op);
      }
    }
    for (size_t k = 0; k < frame.recasts.size(); ++k) {
      add(frame.recasts[k].op, layout_.reruns[f].recast_steps[k]);
    }
  }

  // The program holds what it makes again as it did before, and no longer than
  // the rerun.
  void HoldByTheProgram(FrameId f) {
    const Frame& frame = frames_.list[f];
    const auto scope_step = [&](Time scope_end) {
      return layout_.RerunStepAt(f, frame,
                                 std::min(scope_end, frame.rerun_stop));
    };
    const std::set<StorageId> split = now_.SplitStorages();
    if (!split.empty()) {
      for (const TensorId t : now_.tensors()) {
        const TraceTensor& tensor = trace().tensors[t];
        if (!split.contains(tensor.storage)) continue;
        lives_.Hold(now_.OfTensor(t), scope_step(tensor.scope_end));
      }
    }
    for (const OperatorId op :
         OperatorsIn(frame.call->start, frame.rerun_stop)) {
      for (const StorageId s : prepared_.CreatedBy(op)) {
        // Only the results are there again of what is saved.
        if (frame.Saves(op) && !Contains(trace().operators[op].outputs, s)) {
          continue;
        }
        if (!split.contains(s)) {
          lives_.Hold(now_.OfStorage(s),
                      scope_step(trace().storages[s].scope_end));
        }
      }
    }
    for (const Recast& recast : frame.recasts) {
      for (const StorageId s : prepared_.CreatedBy(recast.op)) {
        lives_.Hold(now_.OfStorage(s), layout_.reruns[f].end);
      }
    }
  }

  void HoldByAutograd(FrameId f) {
    for (const SavedId k : frames_.list[f].saved) {
      const SavedTensor& saved = trace().saved[k];
      const StepId end = AutogradEnd(saved, f, frames_.list[f], layout_);
      const LifeId copy = now_.OfStorage(saved.storage);
      const LifeId own =
          saved.tensor == kNone ? copy : now_.OfTensor(saved.tensor);
      if (own == kNone) continue;
      lives_.Hold(own, end);
      // A saved view is handed out as one of what was made again.
      if (!saved.requires_grad) lives_.Hold(copy, end);
    }
  }

  // The rerun enters the frames inside anew, and these hold what they did in
  // the forward pass, now of what the rerun makes.
  void HoldByFramesInside(FrameId f) {
    const Frame& frame = frames_.list[f];
    for (const FrameId g : IdRange(Next(f), frame.subtree_end)) {
      const Frame& inner = frames_.list[g];
      if (inner.call->start > frame.rerun_stop) break;
      const bool lets_go = inner.release_time <= frame.rerun_time;
      const StepId release_step =
          lets_go ? layout_.RerunStepAt(f, frame, inner.release_time)
                  : layout_.reruns[f].end;
      if (inner.parent == f) {
        const StepLayout::Rerun& own = layout_.reruns[g];
        StepId end = release_step;
        if (!lets_go) {
          end = std::max(end, own.is_laid_out
                                  ? own.end
                                  : layout_.StepAt(inner.release_time));
        }
        for (size_t k = 0; k < inner.arguments.size(); ++k) {
          argument_lives_[g][k] = now_.OfTensor(inner.call->arguments[k]);
          lives_.Hold(argument_lives_[g][k], end);
        }
      }
      // The frames that this rerun makes end with it.
      HoldByFrameInside(f, g, release_step);
    }
  }

  void HoldByFrameInside(FrameId f, FrameId g, StepId end) {
    const Frame& inner = frames_.list[g];
    for (const StorageId s : inner.call->inputs) {
      const bool is_saved_by_parent =
          inner.parent != f && Contains(inner.arguments, s);
      if (!is_saved_by_parent) lives_.Hold(now_.OfStorage(s), end);
    }
    const Time last = std::min(inner.call->end, frames_.list[f].rerun_stop);
    for (const OperatorId op : OperatorsIn(inner.call->start, last)) {
      if (!inner.Saves(op)) continue;
      const TraceOperator& saved = trace().operators[op];
      if (const std::vector<int32_t>* kept_results = inner.KeptResults(op)) {
        for (const int32_t result : *kept_results) {
          lives_.Hold(now_.OfTensor(saved.results[result]), end);
        }
        continue;
      }
      for (const TensorId t : saved.results) lives_.Hold(now_.OfTensor(t), end);
      if (!saved.results.empty()) continue;
      for (const StorageId s : saved.outputs)
        lives_.Hold(now_.OfStorage(s), end);
    }
  }

  const PreparedTrace& prepared_;
  const Frames& frames_;
  const StepLayout& layout_;
  const MovedStorages& moves_;
  Lives lives_;
  // The life that each argument of a frame that is a tensor given by position is part
  // of when the frame runs again.
  IndexedVector<FrameId, std::vector<LifeId>> argument_lives_;
  RerunLives now_;
};

}  // namespace

LifeList FindLives(const PreparedTrace& prepared, const Frames& frames,
                   const StepLayout& layout, const MovedStorages& moves) {
  LifeList lives = RerunVisitor(prepared, frames, layout, moves).Visit();
  // A storage that comes back and goes before the next step is never in use.
  for (const MovedId k : moves.ids()) {
    Life& life = lives[FetchedLife(k, *prepared.trace)];
    if (life.end <= life.begin) life.begin = kNoStep;
  }
  return lives;
}

}  // namespace acplan::graph
