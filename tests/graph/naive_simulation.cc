#include "tests/graph/naive_simulation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "tests/graph/naive_frames.h"

namespace acplan::graph {
namespace {

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
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
    for (size_t f = 0; f < frames_.size(); ++f) ListMoved(f);
  }

  Simulation Play() {
    const auto count = static_cast<int32_t>(trace_.operators.size());
    for (int32_t time = 0; time <= count; ++time) {
      MoveAt(time);
      LetGo(time);
      for (size_t f = frames_.size(); f-- > 0;) {
        if (frames_[f].asked == time) RunAgain(f);
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
          if (IsMoved(frame, s)) continue;
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

  static bool IsMoved(const NaiveFrame& frame, int32_t storage) {
    return std::ranges::any_of(frame.moved, [&](const auto& moved) {
      return moved.second == storage;
    });
  }

  void ListMoved(size_t f) {
    const NaiveFrame& frame = frames_[f];
    for (const auto& [op, s] : frame.moved) {
      ++pieces_[s].local_holders;
      places_[{f, s}] = static_cast<int32_t>(result_.offload.storages.size());
      const int64_t bytes = trace_.storages[s].bytes;
      result_.offload.storages.push_back(
          {.call = frame.call, .storage = s, .op = op, .bytes = bytes});
      result_.offload.sent_bytes += bytes;
    }
  }

  void Note(OffloadEvent::Kind kind, size_t f, int32_t storage) {
    const int32_t place = places_.at({f, storage});
    OffloadUse& use = result_.offload;
    const auto step = static_cast<int32_t>(result_.steps.size());
    use.events.push_back({.kind = kind, .step = step, .moved = place});
    const int64_t bytes = use.storages[place].bytes;
    if (kind == OffloadEvent::Kind::kSend) host_bytes_ += bytes;
    if (kind == OffloadEvent::Kind::kUse || kind == OffloadEvent::Kind::kDrop) {
      host_bytes_ -= bytes;
    }
    use.host_peak_bytes = std::max(use.host_peak_bytes, host_bytes_);
  }

  bool IsThereBeyond(const NaiveFrame& frame, int32_t time) const {
    return IsReached(frame) || frame.released > time;
  }

  void MoveAt(int32_t time) {
    for (size_t f = 0; f < frames_.size(); ++f) {
      for (const auto& [op, s] : frames_[f].moved) {
        if (op + 1 == time) Note(OffloadEvent::Kind::kSend, f, s);
      }
    }
    for (size_t f = 0; f + 1 < frames_.size(); ++f) {
      const bool is_next_done = trace_.calls[frames_[f + 1].call].end == time;
      if (is_next_done && IsThereBeyond(frames_[f], time)) Release(f);
    }
    const auto count = static_cast<int32_t>(trace_.operators.size());
    for (size_t f = 0; f < frames_.size(); ++f) {
      const NaiveFrame& frame = frames_[f];
      if (IsReached(frame) || std::min(frame.released, count) != time) continue;
      for (const auto& [op, s] : frame.moved) {
        Note(OffloadEvent::Kind::kDrop, f, s);
        if (!frame.is_released) --pieces_[s].local_holders;
      }
    }
  }

  void Release(size_t f) {
    if (frames_[f].is_released) return;
    frames_[f].is_released = true;
    for (const auto& [op, s] : frames_[f].moved) {
      Note(OffloadEvent::Kind::kRelease, f, s);
      --pieces_[s].local_holders;
    }
  }

  // As call `f` begins to run again.
  void MoveBack(size_t f) {
    const int32_t now = frames_[f].asked;
    Release(f);
    if (!has_run_again_ && IsThereBeyond(frames_.back(), now)) {
      Release(frames_.size() - 1);
    }
    has_run_again_ = true;
    Fetch(f);
    if (f > 0 && IsThereBeyond(frames_[f - 1], now)) Fetch(f - 1);
    for (const auto& [op, s] : frames_[f].moved) {
      Note(OffloadEvent::Kind::kUse, f, s);
    }
  }

  void Fetch(size_t f) {
    NaiveFrame& frame = frames_[f];
    if (frame.is_fetched) return;
    frame.is_fetched = true;
    for (const auto& [op, s] : frame.moved) {
      Note(OffloadEvent::Kind::kFetch, f, s);
      const auto piece = static_cast<int32_t>(pieces_.size());
      frame.fetched[s] = piece;
      pieces_.push_back({.storage = s, .is_made = true});
    }
    const TraceCall& call = trace_.calls[frame.call];
    for (int32_t op = call.start; op < call.end; ++op) {
      if (!IsSaved(trace_, frame, op)) continue;
      for (const int32_t s : KeptStorages(trace_, frame, op)) {
        if (!IsMoved(frame, s)) continue;
        if (IsReached(frame) && op < frame.stop) {
          ++pieces_[frame.fetched.at(s)].local_holders;
        } else {
          Hold(frame.fetched.at(s), frame.released);
        }
      }
    }
  }

  static int32_t Kept(const NaiveFrame& frame, int32_t storage) {
    const auto fetched = frame.fetched.find(storage);
    return fetched == frame.fetched.end() ? storage : fetched->second;
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
      const bool is_saved = IsSaved(trace_, frame, op);
      for (const int32_t s : now.creates) {
        int32_t piece = kNothing;
        if (is_saved && KeptStorages(trace_, frame, op).contains(s)) {
          piece = Kept(frame, s);
        }
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
          if (IsTensorKept(trace_, frame, t)) {
            piece = Kept(frame, tensor.storage);
          }
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
      const bool is_of_interest =
          again.storages.contains(s) || piece != kNothing;
      if (is_of_interest && piece != OfStorage(again, s)) {
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

  void RunAgain(size_t f) {
    MoveBack(f);
    const NaiveFrame& frame = frames_[f];
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
          --pieces_[Kept(frame, s)].local_holders;
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
  std::vector<NaiveFrame> frames_;
  bool has_run_again_ = false;
  std::map<std::pair<size_t, int32_t>, int32_t> places_;
  int64_t host_bytes_ = 0;
  std::vector<Piece> pieces_;
  Simulation result_;
};

}  // namespace

Simulation SimulateNaively(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules) {
  return Player(trace, modules).Play();
}

}  // namespace acplan::graph
