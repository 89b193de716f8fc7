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
// Offload. What a frame offloads it holds until the release, and has from the
// fetch on in a life of its own, which every kept result on the storage means
// when the frame runs again.
//
// Attributes. A module may keep a tensor beyond the step. A rerun leaves the
// attribute as it was: the original lives on. The copy ends with the rerun, as
// does all that the program holds in it.
//
// These rules are PyTorch's, found by measuring it:
// tests/graph/simulation_test.cc compares with every allocation of real steps.

namespace acplan::graph {
namespace {

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

// Autograd holds what a rerun saves as long as that lasts, and from then until
// the backward node that asks for it lets go of it.
int32_t AutogradEnd(const SavedTensor& saved, int32_t f, const Frame& frame,
                    const StepLayout& layout) {
  if (saved.released <= frame.rerun_time) {
    return layout.RerunStepAt(f, frame, saved.released);
  }
  const int32_t node_end =
      saved.unpacked == kNever ? saved.released : saved.local_end;
  return std::max(layout.reruns[f].end, layout.StepAt(node_end));
}

struct Lives {
  void Hold(int32_t life, int32_t end) {
    if (life == kNoLife) return;
    list[life].end = std::max(list[life].end, end);
  }

  std::vector<Life> list;
};

// The life in which a storage comes back.
int32_t FetchedLife(const MovedStorage& of,
                    const std::vector<MovedStorage>& moved,
                    const Trace& trace) {
  return static_cast<int32_t>(std::ssize(trace.storages) +
                              (&of - moved.data()));
}

// The lives of the storages as the trace has them, and of those that come back
// from the host, with all their holders but those of reruns.
class OriginalLives {
 public:
  OriginalLives(const PreparedTrace& prepared, const Frames& frames,
                const StepLayout& layout,
                const std::vector<MovedStorage>& moved)
      : prepared_(prepared),
        trace_(*prepared.trace),
        frames_(frames),
        layout_(layout),
        moved_(moved) {}

  Lives Find() && {
    lives_.list.reserve(trace_.storages.size() + moved_.size() +
                        layout_.steps.size() - trace_.operators.size());
    for (int32_t s = 0; s < std::ssize(trace_.storages); ++s) {
      const int32_t born = trace_.storages[s].born;
      lives_.list.push_back({s, born < 0 ? 0 : layout_.step_of_operator[born],
                             layout_.StepAt(prepared_.held[s])});
    }
    for (const MovedStorage& moved : moved_) {
      const int32_t begin = moved.fetch ? moved.fetch->step : kNever;
      lives_.list.push_back({moved.storage, begin, 0});
    }
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.call < 0 || frames_.innermost[saved.call] == kNoFrame) {
        lives_.Hold(saved.storage, layout_.StepAt(HeldByAutogradUntil(saved)));
      }
    }
    for (int32_t f = 0; f < std::ssize(frames_.list); ++f) HoldByFrame(f);
    return std::move(lives_);
  }

 private:
  void HoldByFrame(int32_t f) {
    const Frame& frame = frames_.list[f];
    const int32_t release_step = layout_.StepAt(frame.release_time);
    for (const int32_t s : frame.call->inputs) {
      const bool is_saved_by_parent =
          frame.parent != kNoFrame && Contains(frame.arguments, s);
      if (!is_saved_by_parent) lives_.Hold(s, release_step);
    }
    if (!frame.HasPolicy()) return;
    // A saved result waits for its operator's turn in the rerun, or for the end
    // of the frame where no rerun gets there.
    for (int32_t op = frame.call->start; op < frame.call->end; ++op) {
      if (!frame.Saves(op)) continue;
      const bool is_reached =
          layout_.reruns[f].is_laid_out && op < frame.rerun_stop;
      const int32_t end =
          is_reached ? layout_.RerunStepAt(f, frame, op + 1) : release_step;
      for (const int32_t s : trace_.operators[op].outputs) {
        const bool is_kept = frame.KeptResults(op) == nullptr ||
                             KeepsOutput(frame, op, s, trace_);
        if (is_kept) HoldKept(f, s, end);
      }
    }
  }

  void HoldKept(int32_t f, int32_t storage, int32_t end) {
    if (frames_.list[f].has_offload) {
      const auto of_frame = MovedBy(f, moved_);
      const auto moved =
          std::ranges::find(of_frame, storage, &MovedStorage::storage);
      if (moved != of_frame.end()) {
        lives_.Hold(FetchedLife(*moved, moved_, trace_), end);
        if (moved->release) end = std::min(end, moved->release->step);
      }
    }
    lives_.Hold(storage, end);
  }

  const PreparedTrace& prepared_;
  const Trace& trace_;
  const Frames& frames_;
  const StepLayout& layout_;
  const std::vector<MovedStorage>& moved_;
  Lives lives_;
};

// Adds to the lives of the originals those that reruns make, and the holders
// that reruns bring.
class RerunVisitor {
 public:
  RerunVisitor(const PreparedTrace& prepared, const Frames& frames,
               const StepLayout& layout, const std::vector<MovedStorage>& moved)
      : prepared_(prepared),
        frames_(frames),
        layout_(layout),
        moved_(moved),
        lives_(OriginalLives(prepared, frames, layout, moved).Find()),
        now_(prepared) {
    argument_lives_.reserve(frames.list.size());
    for (const Frame& frame : frames.list) {
      argument_lives_.push_back(frame.arguments);
    }
  }

  std::vector<Life> Visit() && {
    for (int32_t f = 0; f < std::ssize(frames_.list); ++f) {
      if (layout_.reruns[f].is_laid_out) AddRerun(f);
    }
    return std::move(lives_.list);
  }

 private:
  const Trace& trace() const { return *prepared_.trace; }

  // Adds what a frame makes anew, and all that holds it.
  void AddRerun(int32_t f) {
    const Frame& frame = frames_.list[f];
    const auto first_copy = static_cast<int32_t>(lives_.list.size());
    // An argument that is given twice is the first of the two.
    for (size_t k = frame.arguments.size(); k-- > 0;) {
      now_.Set(frame.arguments[k], argument_lives_[f][k]);
    }
    AddCopies(f);
    for (const MovedStorage& moved : MovedBy(f, moved_)) {
      now_.SetFetched(frame, moved.storage,
                      FetchedLife(moved, moved_, trace()));
    }
    now_.SetTensors(frame);
    HoldByTheProgram(f);
    HoldByAutograd(f);
    HoldByFramesInside(f);
    for (const int32_t s : frame.arguments) now_.Reset(s);
    for (auto life = first_copy; life < std::ssize(lives_.list); ++life) {
      now_.Reset(lives_.list[life].storage);
    }
    now_.ResetFetched();
    if (!frame.has_stand_ins) return;
    for (int32_t op = frame.call->start; op < frame.rerun_stop; ++op) {
      for (const int32_t s : prepared_.CreatedBy(op)) now_.Reset(s);
    }
  }

  void AddCopies(int32_t f) {
    const Frame& frame = frames_.list[f];
    const auto add = [&](int32_t op, int32_t step) {
      for (const int32_t s : prepared_.CreatedBy(op)) {
        now_.Set(s, static_cast<int32_t>(lives_.list.size()));
        lives_.list.push_back({s, step, step});
      }
    };
    for (int32_t op = frame.call->start; op < frame.rerun_stop; ++op) {
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
  void HoldByTheProgram(int32_t f) {
    const Frame& frame = frames_.list[f];
    const auto scope_step = [&](int32_t scope_end) {
      return layout_.RerunStepAt(f, frame,
                                 std::min(scope_end, frame.rerun_stop));
    };
    const std::set<int32_t> split = now_.SplitStorages();
    if (!split.empty()) {
      for (auto t = now_.first_tensor(); t < now_.end_of_tensors(); ++t) {
        const TraceTensor& tensor = trace().tensors[t];
        if (!split.contains(tensor.storage)) continue;
        lives_.Hold(now_.OfTensor(t), scope_step(tensor.scope_end));
      }
    }
    for (int32_t op = frame.call->start; op < frame.rerun_stop; ++op) {
      for (const int32_t s : prepared_.CreatedBy(op)) {
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
      for (const int32_t s : prepared_.CreatedBy(recast.op)) {
        lives_.Hold(now_.OfStorage(s), layout_.reruns[f].end);
      }
    }
  }

  void HoldByAutograd(int32_t f) {
    for (const int32_t k : frames_.list[f].saved) {
      const SavedTensor& saved = trace().saved[k];
      const int32_t end = AutogradEnd(saved, f, frames_.list[f], layout_);
      const int32_t copy = now_.OfStorage(saved.storage);
      const int32_t own = saved.tensor < 0 ? copy : now_.OfTensor(saved.tensor);
      if (own == kNoLife) continue;
      lives_.Hold(own, end);
      // A saved view is handed out as one of what was made again.
      if (!saved.requires_grad) lives_.Hold(copy, end);
    }
  }

  // The rerun enters the frames inside anew, and these hold what they did in
  // the forward pass, now of what the rerun makes.
  void HoldByFramesInside(int32_t f) {
    const Frame& frame = frames_.list[f];
    for (int32_t g = f + 1; g < frame.subtree_end; ++g) {
      const Frame& inner = frames_.list[g];
      if (inner.call->start > frame.rerun_stop) break;
      const bool lets_go = inner.release_time <= frame.rerun_time;
      const int32_t release_step =
          lets_go ? layout_.RerunStepAt(f, frame, inner.release_time)
                  : layout_.reruns[f].end;
      if (inner.parent == f) {
        const StepLayout::Rerun& own = layout_.reruns[g];
        int32_t end = release_step;
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

  void HoldByFrameInside(int32_t f, int32_t g, int32_t end) {
    const Frame& inner = frames_.list[g];
    for (const int32_t s : inner.call->inputs) {
      const bool is_saved_by_parent =
          inner.parent != f && Contains(inner.arguments, s);
      if (!is_saved_by_parent) lives_.Hold(now_.OfStorage(s), end);
    }
    const int32_t last = std::min(inner.call->end, frames_.list[f].rerun_stop);
    for (int32_t op = inner.call->start; op < last; ++op) {
      if (!inner.Saves(op)) continue;
      const TraceOperator& saved = trace().operators[op];
      if (const std::vector<int32_t>* kept = inner.KeptResults(op)) {
        for (const int32_t result : *kept) {
          lives_.Hold(now_.OfTensor(saved.results[result]), end);
        }
        continue;
      }
      for (const int32_t t : saved.results) lives_.Hold(now_.OfTensor(t), end);
      if (!saved.results.empty()) continue;
      for (const int32_t s : saved.outputs) lives_.Hold(now_.OfStorage(s), end);
    }
  }

  const PreparedTrace& prepared_;
  const Frames& frames_;
  const StepLayout& layout_;
  const std::vector<MovedStorage>& moved_;
  Lives lives_;
  // By frame and argument that is a tensor given by position: the life that it
  // is part of when the frame runs again.
  std::vector<std::vector<int32_t>> argument_lives_;
  RerunLives now_;
};

}  // namespace

std::vector<Life> FindLives(const PreparedTrace& prepared, const Frames& frames,
                            const StepLayout& layout,
                            const std::vector<MovedStorage>& moved) {
  std::vector<Life> lives =
      RerunVisitor(prepared, frames, layout, moved).Visit();
  // What comes back and goes before the next step is never in use.
  for (size_t k = 0; k < moved.size(); ++k) {
    Life& life = lives[prepared.trace->storages.size() + k];
    if (life.end <= life.begin) life.begin = kNever;
  }
  return lives;
}

}  // namespace acplan::graph
