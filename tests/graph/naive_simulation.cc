#include "tests/graph/naive_simulation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace acplan::graph {
namespace {

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

// A call of a unit with gradients.
struct NaiveFrame {
  int32_t call = 0;
  const CheckpointedModule* unit = nullptr;
  std::vector<SavedTensor> saved = {};
  int32_t asked = kNever;  // when backward first asks for something saved in it
  int32_t stop = 0;
  int32_t released = 0;
};

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            int32_t op) {
  if (frame.unit->decisions.empty()) return OperatorDecision::kRecompute;
  return frame.unit->decisions[op - trace.calls[frame.call].start];
}

bool IsSaved(const Trace& trace, const NaiveFrame& frame, int32_t op) {
  return DecisionOf(trace, frame, op) == OperatorDecision::kSave;
}

// Of a saved operator: the storages and the tensors that are kept.
std::set<int32_t> KeptStorages(const Trace& trace, const NaiveFrame& frame,
                               int32_t op) {
  const TraceOperator& now = trace.operators[op];
  const auto kept =
      frame.unit->kept_results.find(op - trace.calls[frame.call].start);
  if (kept == frame.unit->kept_results.end()) {
    return {now.outputs.begin(), now.outputs.end()};
  }
  std::set<int32_t> storages;
  for (const int32_t r : kept->second) {
    storages.insert(trace.tensors[now.results[r]].storage);
  }
  return storages;
}

bool IsTensorKept(const Trace& trace, const NaiveFrame& frame, int32_t tensor) {
  const int32_t op = trace.tensors[tensor].op;
  const auto kept =
      frame.unit->kept_results.find(op - trace.calls[frame.call].start);
  if (kept == frame.unit->kept_results.end()) return true;
  return std::ranges::any_of(kept->second, [&](int32_t r) {
    return trace.operators[op].results[r] == tensor;
  });
}

std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules) {
  std::vector<NaiveFrame> frames;
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const auto unit = std::ranges::find(modules, trace.calls[c].module,
                                        &CheckpointedModule::module);
    if (unit == modules.end() || trace.calls[c].no_grad) continue;
    NaiveFrame frame = {
        .call = c, .unit = &*unit, .released = trace.calls[c].end};
    for (const SavedTensor& saved : trace.saved) {
      int32_t around = saved.call;
      while (around >= 0 && around != c) around = trace.calls[around].parent;
      if (around != c) continue;
      frame.saved.push_back(saved);
      frame.asked = std::min(frame.asked, saved.unpacked);
      frame.stop = std::max(frame.stop, saved.packed);
      frame.released = std::max(frame.released, saved.released);
    }
    frames.push_back(frame);
  }
  return frames;
}

// Plays a step. A piece of memory is an original (the index of its storage) or
// a copy.
class Player {
 public:
  Player(const Trace& trace, const std::vector<CheckpointedModule>& modules)
      : trace_(trace), frames_(FramesOf(trace, modules)) {
    for (int32_t s = 0; s < std::ssize(trace.storages); ++s) {
      pieces_.push_back({.storage = s, .is_made = trace.storages[s].born < 0});
    }
    HoldOriginals();
  }

  Simulation Play() {
    const auto count = static_cast<int32_t>(trace_.operators.size());
    for (int32_t time = 0; time <= count; ++time) {
      LetGo(time);
      for (size_t f = frames_.size(); f-- > 0;) {
        if (frames_[f].asked == time) RunAgain(frames_[f]);
      }
      if (time == count) break;
      for (const int32_t s : trace_.operators[time].creates) {
        pieces_[s].is_made = true;
      }
      Take({.op = time}, trace_.operators[time].creates);
    }
    return result_;
  }

 private:
  static constexpr int32_t kNothing = -1;

  struct Piece {
    int32_t storage = 0;
    bool is_made = false;
    std::multiset<int32_t> ends = {};  // of its holders, in the trace's time
    int local_holders = 0;             // while something runs again
  };
  struct LocalHold {
    int32_t end;
    int32_t piece;
  };

  void Hold(int32_t piece, int32_t end) { pieces_[piece].ends.insert(end); }

  void HoldOriginals() {
    const std::vector<int32_t> held = HeldByOthers(trace_);
    for (int32_t s = 0; s < std::ssize(held); ++s) Hold(s, held[s]);
    for (const SavedTensor& saved : trace_.saved) {
      bool is_outside = true;
      for (int32_t c = saved.call; c >= 0; c = trace_.calls[c].parent) {
        is_outside =
            is_outside &&
            std::ranges::find(frames_, c, &NaiveFrame::call) == frames_.end();
      }
      if (is_outside) Hold(saved.storage, HeldByAutogradUntil(saved));
    }
    for (const NaiveFrame& frame : frames_) {
      const TraceCall& call = trace_.calls[frame.call];
      for (const int32_t s : call.inputs) Hold(s, frame.released);
      for (int32_t op = call.start; op < call.end; ++op) {
        if (!IsSaved(trace_, frame, op)) continue;
        const bool waits = IsReached(frame) && op < frame.stop;
        for (const int32_t s : KeptStorages(trace_, frame, op)) {
          // What waits for its turn is let go of by RunAgain.
          if (waits) {
            ++pieces_[s].local_holders;
          } else {
            Hold(s, frame.released);
          }
        }
      }
    }
  }

  bool IsReached(const NaiveFrame& frame) const {
    return frame.asked <= std::ssize(trace_.operators);
  }

  void LetGo(int32_t time) {
    for (Piece& piece : pieces_) {
      piece.ends.erase(piece.ends.begin(), piece.ends.upper_bound(time));
    }
  }

  // A step, and what it makes, which is there while it runs in any case.
  void Take(Simulation::Step step, const std::vector<int32_t>& made) {
    int64_t live = 0;
    const std::set<int32_t> fresh(made.begin(), made.end());
    for (int32_t p = 0; p < std::ssize(pieces_); ++p) {
      const Piece& piece = pieces_[p];
      const bool is_before = result_.steps.empty() &&
                             p < std::ssize(trace_.storages) &&
                             trace_.storages[p].born < 0;
      const bool is_held = !piece.ends.empty() || piece.local_holders > 0;
      if (fresh.contains(p) || is_before || (piece.is_made && is_held)) {
        live += (trace_.storages[piece.storage].bytes + 511) / 512 * 512;
      }
    }
    result_.steps.push_back(step);
    result_.live_bytes.push_back(live);
    if (step.redone >= 0) {
      result_.recompute_ms += trace_.operators[step.op].runtime_ms;
    }
  }

  // Which pieces the storages and tensors of a call are when it runs again.
  struct Again {
    std::map<int32_t, int32_t> storages, tensors;
    std::set<int32_t> running;  // operators
  };

  int32_t OfStorage(const Again& again, int32_t s) const {
    const auto piece = again.storages.find(s);
    return piece == again.storages.end() ? s : piece->second;
  }

  int32_t OfTensor(const Again& again, int32_t t) const {
    const auto piece = again.tensors.find(t);
    return piece == again.tensors.end()
               ? OfStorage(again, trace_.tensors[t].storage)
               : piece->second;
  }

  Again MakeAgain(const NaiveFrame& frame) {
    Again again;
    for (int32_t op = trace_.calls[frame.call].start; op < frame.stop; ++op) {
      const TraceOperator& now = trace_.operators[op];
      const OperatorDecision decision = DecisionOf(trace_, frame, op);
      bool runs = decision == OperatorDecision::kRecompute;
      if (runs && now.view) {
        for (const int32_t s : now.outputs) {
          runs = runs && OfStorage(again, s) != kNothing;
        }
        for (const int32_t t : now.results) {
          const int32_t base = trace_.tensors[t].base;
          runs = runs && (base < 0 || OfTensor(again, base) != kNothing);
        }
      }
      if (runs) again.running.insert(op);
      const bool is_saved = decision == OperatorDecision::kSave;
      for (const int32_t s : now.creates) {
        int32_t piece = kNothing;
        if (is_saved && KeptStorages(trace_, frame, op).contains(s)) piece = s;
        if (runs) {
          piece = static_cast<int32_t>(pieces_.size());
          pieces_.push_back({.storage = s});
        }
        again.storages[s] = piece;
      }
      for (const int32_t t : now.results) {
        const TraceTensor& tensor = trace_.tensors[t];
        int32_t piece = kNothing;
        if (is_saved) {
          if (IsTensorKept(trace_, frame, t)) piece = tensor.storage;
        } else if (runs || Contains(now.mutates, tensor.storage)) {
          piece = tensor.base < 0 ? OfStorage(again, tensor.storage)
                                  : OfTensor(again, tensor.base);
        }
        again.tensors[t] = piece;
      }
    }
    return again;
  }

  // The holders of a call that runs again, until times of the forward pass;
  // those that hold on beyond the recomputation are given to the pieces.
  std::vector<LocalHold> HoldersOf(const NaiveFrame& frame,
                                   const Again& again) {
    std::vector<LocalHold> holders;
    const auto hold = [&](int32_t piece, int32_t end) {
      if (piece != kNothing) holders.push_back({end, piece});
    };
    std::set<int32_t> told_apart;
    for (const auto& [t, piece] : again.tensors) {
      const int32_t s = trace_.tensors[t].storage;
      if (again.storages.contains(s) && piece != OfStorage(again, s)) {
        told_apart.insert(s);
      }
    }
    for (const auto& [t, piece] : again.tensors) {
      if (told_apart.contains(trace_.tensors[t].storage)) {
        hold(piece, trace_.tensors[t].scope_end);
      }
    }
    for (const auto& [s, piece] : again.storages) {
      if (!told_apart.contains(s)) hold(piece, trace_.storages[s].scope_end);
    }
    for (const SavedTensor& saved : frame.saved) {
      const int32_t piece = saved.tensor < 0 ? OfStorage(again, saved.storage)
                                             : OfTensor(again, saved.tensor);
      if (piece == kNothing) continue;
      std::set<int32_t> pieces = {piece};
      if (!saved.requires_grad) pieces.insert(OfStorage(again, saved.storage));
      pieces.erase(kNothing);
      for (const int32_t p : pieces) {
        if (saved.released <= frame.asked) {
          hold(p, saved.released);
          continue;
        }
        hold(p, kNever);
        Hold(p, saved.unpacked == kNever ? saved.released : saved.local_end);
      }
    }
    return holders;
  }

  void RunAgain(const NaiveFrame& frame) {
    const Again again = MakeAgain(frame);
    std::vector<LocalHold> holders = HoldersOf(frame, again);
    for (const LocalHold& hold : holders) ++pieces_[hold.piece].local_holders;
    const auto let_go = [&](int32_t time) {
      std::erase_if(holders, [&](const LocalHold& hold) {
        if (hold.end > time) return false;
        --pieces_[hold.piece].local_holders;
        return true;
      });
    };
    for (int32_t op = trace_.calls[frame.call].start; op < frame.stop; ++op) {
      let_go(op);
      if (IsSaved(trace_, frame, op)) {
        for (const int32_t s : KeptStorages(trace_, frame, op)) {
          --pieces_[s].local_holders;
        }
      }
      if (!again.running.contains(op)) continue;
      std::vector<int32_t> made;
      for (const int32_t s : trace_.operators[op].creates) {
        made.push_back(OfStorage(again, s));
        pieces_[made.back()].is_made = true;
      }
      Take({.op = op, .redone = frame.call}, made);
    }
    let_go(kNever);
    // What ended before or at this time has ended.
    LetGo(frame.asked);
  }

  const Trace& trace_;
  const std::vector<NaiveFrame> frames_;
  std::vector<Piece> pieces_;
  Simulation result_;
};

// Contents of storages that are born in a call, by name.
class Contents {
 public:
  Contents(const Trace& trace, const NaiveFrame& frame)
      : trace_(trace), frame_(frame), call_(trace.calls[frame.call]) {}

  bool AreTheSame() {
    for (int32_t op = call_.start; op < call_.end; ++op) Run(op, op);
    const std::map<int32_t, int32_t> at_the_end = now_;
    std::map<int32_t, std::map<int32_t, int32_t>> read;
    now_.clear();
    for (int32_t op = call_.start; op < call_.end; ++op) {
      read[op] = Read(op);
      Run(op, op);
    }
    now_.clear();
    std::set<int32_t> kept_tensors;
    for (int32_t op = call_.start; op < frame_.stop; ++op) {
      const TraceOperator& operation = trace_.operators[op];
      switch (DecisionOf(trace_, frame_, op)) {
        case OperatorDecision::kRecompute:
          if (operation.view) break;
          if (Read(op) != read[op]) return false;
          Run(op, op);
          break;
        case OperatorDecision::kSave:
          for (const int32_t s : operation.creates) {
            now_[s] = KeptStorages(trace_, frame_, op).contains(s)
                          ? at_the_end.at(s)
                          : kMissing;
          }
          for (const int32_t t : operation.results) {
            if (IsTensorKept(trace_, frame_, t)) kept_tensors.insert(t);
          }
          break;
        case OperatorDecision::kSkip:
          for (const int32_t s : operation.creates) now_[s] = kMissing;
      }
    }
    return std::ranges::all_of(frame_.saved, [&](const SavedTensor& saved) {
      return saved.unpacked == kNever || kept_tensors.contains(saved.tensor) ||
             !IsOfCall(saved.storage) ||
             now_.at(saved.storage) == at_the_end.at(saved.storage) ||
             now_.at(saved.storage) == AtStop(saved.storage, at_the_end);
    });
  }

 private:
  static constexpr int32_t kMissing = -1;

  bool IsOfCall(int32_t s) const {
    const int32_t born = trace_.storages[s].born;
    return call_.start <= born && born < call_.end;
  }

  // A content is the last operator that wrote it.
  void Run(int32_t op, int32_t content) {
    for (const int32_t s : trace_.operators[op].creates) now_[s] = content;
    for (const int32_t s : trace_.operators[op].mutates) {
      if (IsOfCall(s)) now_[s] = content;
    }
  }

  std::map<int32_t, int32_t> Read(int32_t op) const {
    std::map<int32_t, int32_t> read;
    for (const int32_t s : trace_.operators[op].reads) {
      if (IsOfCall(s)) read[s] = now_.at(s);
    }
    return read;
  }

  // The recomputation does not get to what writes after it.
  int32_t AtStop(int32_t storage,
                 const std::map<int32_t, int32_t>& at_the_end) const {
    int32_t content = at_the_end.at(storage);
    if (content < frame_.stop) return content;
    for (int32_t op = call_.start; op < frame_.stop; ++op) {
      const TraceOperator& now = trace_.operators[op];
      if (Contains(now.creates, storage) || Contains(now.mutates, storage)) {
        content = op;
      }
    }
    return content;
  }

  const Trace& trace_;
  const NaiveFrame& frame_;
  const TraceCall& call_;
  std::map<int32_t, int32_t> now_;
};

}  // namespace

Simulation SimulateNaively(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules) {
  return Player(trace, modules).Play();
}

bool ComputesTheSame(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules) {
  const std::vector<NaiveFrame> frames = FramesOf(trace, modules);
  return std::ranges::all_of(frames, [&](const NaiveFrame& frame) {
    return frame.asked == kNever || Contents(trace, frame).AreTheSame();
  });
}

}  // namespace acplan::graph
