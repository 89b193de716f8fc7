#include "tests/graph/naive_simulation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/graph/naive_frames.h"

namespace acplan::graph {
namespace {

bool HasValue(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

// Plays a step. A piece of memory is an original (the index of its storage) or
// a copy.
class Player {
 public:
  Player(const Trace& trace, const std::vector<CheckpointedModule>& modules)
      : trace_(trace),
        frames_(FramesOf(trace, modules)),
        states_(frames_.size()) {
    for (int32_t s = 0; s < std::ssize(trace_.storages); ++s) {
      pieces_.push_back({.storage = s, .is_made = trace_.storages[s].born < 0});
    }
    for (size_t f = 0; f < frames_.size(); ++f) {
      for (const int32_t t : trace_.calls[frames_[f].call].arguments) {
        states_[f].given.push_back(trace_.tensors[t].storage);
      }
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
    int other_holders = 0;             // holders whose end is an event
  };
  struct FrameState {
    bool has_run = false;
    // The pieces of its arguments when it runs again, and the pieces that the
    // frame around it holds until it has run again.
    std::vector<int32_t> given = {}, until_it_ran = {};
  };
  struct LocalHold {
    int32_t end;  // in the forward pass
    int32_t piece;
  };

  // A call that runs again: the pieces that its storages and tensors are.
  struct Again {
    std::map<int32_t, int32_t> given;  // storages from outside of it
    std::map<int32_t, int32_t> storages, tensors;
    std::set<int32_t> running;  // operators
    std::vector<LocalHold> holders;
  };

  const TraceCall& CallOf(size_t f) const {
    return trace_.calls[frames_[f].call];
  }

  void Hold(int32_t piece, int32_t end) { pieces_[piece].ends.insert(end); }

  void HoldOriginals() {
    const std::vector<int32_t> held = HeldByOthers(trace_);
    for (int32_t s = 0; s < std::ssize(held); ++s) {
      Hold(s, held[s]);
    }
    for (const SavedTensor& saved : trace_.saved) {
      bool is_outside = true;
      for (int32_t c = saved.call; c >= 0; c = trace_.calls[c].parent) {
        is_outside =
            is_outside &&
            std::ranges::find(frames_, c, &NaiveFrame::call) == frames_.end();
      }
      if (is_outside) Hold(saved.storage, HeldByAutogradUntil(saved));
    }
    for (size_t f = 0; f < frames_.size(); ++f) {
      const NaiveFrame& frame = frames_[f];
      for (const int32_t s : CallOf(f).inputs) {
        if (frame.parent < 0 || !HasValue(states_[f].given, s)) {
          Hold(s, frame.released);
        }
      }
      for (int32_t op = CallOf(f).start; op < CallOf(f).end; ++op) {
        if (!IsSaved(trace_, frames_[f], op)) continue;
        for (const int32_t s : KeptStorages(trace_, frame, op)) {
          if (IsMoved(frame, s)) continue;
          // RunAgain releases the pieces whose turn is still to come.
          if (IsReached(frame) && op < frame.stop) {
            ++pieces_[s].other_holders;
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
      ++pieces_[s].other_holders;
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
        if (!frame.is_released) --pieces_[s].other_holders;
      }
    }
  }

  void Release(size_t f) {
    if (frames_[f].is_released) return;
    frames_[f].is_released = true;
    for (const auto& [op, s] : frames_[f].moved) {
      Note(OffloadEvent::Kind::kRelease, f, s);
      --pieces_[s].other_holders;
    }
  }

  // Moves storages back when call `f` begins to run again.
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
          ++pieces_[frame.fetched.at(s)].other_holders;
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

  // Takes a step. Its results are there at least while it runs.
  void Take(Simulation::Step step, const std::vector<int32_t>& made) {
    int64_t live = 0;
    const std::set<int32_t> fresh(made.begin(), made.end());
    for (int32_t p = 0; p < std::ssize(pieces_); ++p) {
      const Piece& piece = pieces_[p];
      const bool is_before = result_.steps.empty() &&
                             p < std::ssize(trace_.storages) &&
                             trace_.storages[p].born < 0;
      const bool is_held = !piece.ends.empty() || piece.other_holders > 0;
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

  static int32_t OfStorage(const Again& again, int32_t s) {
    const auto made = again.storages.find(s);
    if (made != again.storages.end()) return made->second;
    const auto given = again.given.find(s);
    return given == again.given.end() ? s : given->second;
  }

  int32_t OfTensor(const Again& again, int32_t t) const {
    const auto piece = again.tensors.find(t);
    return piece == again.tensors.end()
               ? OfStorage(again, trace_.tensors[t].storage)
               : piece->second;
  }

  int32_t Copy(int32_t storage) {
    pieces_.push_back({.storage = storage});
    return static_cast<int32_t>(pieces_.size()) - 1;
  }

  Again MakeAgain(size_t f) {
    const NaiveFrame& frame = frames_[f];
    Again again;
    // An argument that is given twice is the first of the two.
    for (size_t k = 0; k < states_[f].given.size(); ++k) {
      const int32_t t = CallOf(f).arguments[k];
      again.given.try_emplace(trace_.tensors[t].storage, states_[f].given[k]);
    }
    for (const NaiveRecast& recast : NaiveRecastsOf(trace_, frame)) {
      for (const int32_t s : trace_.operators[recast.op].creates) {
        again.given[s] = Copy(s);
        again.holders.push_back({kNever, again.given[s]});
      }
    }
    for (int32_t op = CallOf(f).start; op < frame.stop; ++op) {
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
      MakePieces(frame, op, again);
    }
    return again;
  }

  void MakePieces(const NaiveFrame& frame, int32_t op, Again& again) {
    const TraceOperator& now = trace_.operators[op];
    const bool runs = again.running.contains(op);
    const bool is_saved = IsSaved(trace_, frame, op);
    for (const int32_t s : now.creates) {
      int32_t piece = kNothing;
      if (is_saved && KeptStorages(trace_, frame, op).contains(s)) {
        piece = Kept(frame, s);
      }
      if (runs) piece = Copy(s);
      again.storages[s] = piece;
    }
    for (const int32_t t : now.results) {
      const TraceTensor& tensor = trace_.tensors[t];
      int32_t piece = kNothing;
      if (is_saved) {
        if (IsTensorKept(trace_, frame, t)) piece = Kept(frame, tensor.storage);
      } else if (runs || HasValue(now.mutates, tensor.storage)) {
        piece = tensor.base < 0 ? OfStorage(again, tensor.storage)
                                : OfTensor(again, tensor.base);
      }
      again.tensors[t] = piece;
    }
  }

  static void HoldLocally(Again& again, int32_t piece, int32_t end) {
    if (piece != kNothing) again.holders.push_back({end, piece});
  }

  // The program holds the call's results as it did before, until the call
  // stops.
  void HoldByTheProgram(Again& again) const {
    std::set<int32_t> told_apart;
    for (const auto& [t, piece] : again.tensors) {
      const int32_t s = trace_.tensors[t].storage;
      const bool is_made = again.storages.contains(s);
      if (piece != OfStorage(again, s) && (is_made || piece != kNothing)) {
        told_apart.insert(s);
      }
    }
    for (const auto& [t, piece] : again.tensors) {
      if (told_apart.contains(trace_.tensors[t].storage)) {
        HoldLocally(again, piece, trace_.tensors[t].scope_end);
      }
    }
    for (const auto& [s, piece] : again.storages) {
      if (!told_apart.contains(s)) {
        HoldLocally(again, piece, trace_.storages[s].scope_end);
      }
    }
  }

  void HoldByAutograd(size_t f, Again& again) {
    for (const SavedTensor& saved : frames_[f].saved) {
      const int32_t piece = saved.tensor < 0 ? OfStorage(again, saved.storage)
                                             : OfTensor(again, saved.tensor);
      if (piece == kNothing) continue;
      std::set<int32_t> pieces = {piece};
      if (!saved.requires_grad) pieces.insert(OfStorage(again, saved.storage));
      pieces.erase(kNothing);
      for (const int32_t p : pieces) {
        if (saved.released <= frames_[f].asked) {
          HoldLocally(again, p, saved.released);
          continue;
        }
        HoldLocally(again, p, kNever);
        Hold(p, saved.unpacked == kNever ? saved.released : saved.local_end);
      }
    }
  }

  // The calls of units inside begin and end again, and those that backward asks
  // for take their arguments from here.
  void HoldByFramesInside(size_t f, Again& again) {
    const int32_t stop = frames_[f].stop;
    for (size_t g = f + 1; g < frames_.size(); ++g) {
      const NaiveFrame& inner = frames_[g];
      if (CallOf(g).start >= CallOf(f).end || CallOf(g).start > stop) continue;
      if (!IsInside(g, f)) continue;
      const bool lets_go = inner.released <= frames_[f].asked;
      const int32_t end = lets_go ? inner.released : kNever;
      if (inner.parent == static_cast<int>(f)) GiveArguments(g, end, again);
      std::vector<int32_t> held;
      for (const int32_t s : CallOf(g).inputs) {
        const bool is_given = HasValue(ArgumentsOf(g), s);
        if (inner.parent == static_cast<int>(f) || !is_given) {
          held.push_back(OfStorage(again, s));
        }
      }
      for (int32_t op = CallOf(g).start; op < std::min(CallOf(g).end, stop);
           ++op) {
        if (IsSaved(trace_, frames_[g], op)) AddKept(g, op, again, held);
      }
      for (const int32_t piece : held) HoldLocally(again, piece, end);
    }
  }

  bool IsInside(size_t g, size_t f) const {
    auto around = frames_[g].parent;
    while (around >= 0 && around != static_cast<int>(f)) {
      around = frames_[around].parent;
    }
    return around >= 0;
  }

  std::vector<int32_t> ArgumentsOf(size_t g) const {
    std::vector<int32_t> storages;
    for (const int32_t t : CallOf(g).arguments) {
      storages.push_back(trace_.tensors[t].storage);
    }
    return storages;
  }

  void GiveArguments(size_t g, int32_t end, Again& again) {
    FrameState& state = states_[g];
    for (size_t k = 0; k < state.given.size(); ++k) {
      const int32_t piece = OfTensor(again, CallOf(g).arguments[k]);
      state.given[k] = piece;
      HoldLocally(again, piece, end);
      if (end != kNever || piece == kNothing) continue;
      if (IsReached(frames_[g])) {
        state.until_it_ran.push_back(piece);
        ++pieces_[piece].other_holders;
      } else {
        Hold(piece, frames_[g].released);
      }
    }
  }

  // Adds the pieces of an operator that the policy of a frame inside keeps.
  void AddKept(size_t g, int32_t op, const Again& again,
               std::vector<int32_t>& held) const {
    const TraceOperator& now = trace_.operators[op];
    for (const int32_t t : now.results) {
      if (IsTensorKept(trace_, frames_[g], t)) {
        held.push_back(OfTensor(again, t));
      }
    }
    if (!now.results.empty()) return;
    for (const int32_t s : now.outputs) held.push_back(OfStorage(again, s));
  }

  void RunAgain(size_t f) {
    const NaiveFrame& frame = frames_[f];
    if (states_[f].has_run) return;
    if (IsSavedAround(trace_, frame)) RunAgain(frame.parent);
    states_[f].has_run = true;
    MoveBack(f);
    Again again = MakeAgain(f);
    HoldByTheProgram(again);
    HoldByAutograd(f, again);
    HoldByFramesInside(f, again);
    for (const LocalHold& hold : again.holders) {
      ++pieces_[hold.piece].other_holders;
    }
    const std::vector<NaiveRecast> recasts = NaiveRecastsOf(trace_, frame);
    for (int32_t op = CallOf(f).start; op < frame.stop; ++op) {
      LetGoLocally(op, again);
      CastAgain(f, op, recasts, again);
      if (IsSaved(trace_, frames_[f], op)) {
        for (const int32_t s : KeptStorages(trace_, frame, op)) {
          --pieces_[Kept(frame, s)].other_holders;
        }
      }
      if (again.running.contains(op)) {
        Redo(f, op, again);
      }
    }
    CastAgain(f, frame.stop, recasts, again);
    LetGoLocally(kNever, again);
    for (const int32_t p : states_[f].until_it_ran) --pieces_[p].other_holders;
    // Releases the pieces that ended before or at this time.
    LetGo(frame.asked);
  }

  void LetGoLocally(int32_t time, Again& again) {
    std::erase_if(again.holders, [&](const LocalHold& hold) {
      if (hold.end > time) return false;
      --pieces_[hold.piece].other_holders;
      return true;
    });
  }

  void CastAgain(size_t f, int32_t user,
                 const std::vector<NaiveRecast>& recasts, const Again& again) {
    for (const NaiveRecast& recast : recasts) {
      if (recast.user == user) Redo(f, recast.op, again);
    }
  }

  void Redo(size_t f, int32_t op, const Again& again) {
    std::vector<int32_t> made;
    for (const int32_t s : trace_.operators[op].creates) {
      made.push_back(OfStorage(again, s));
      pieces_[made.back()].is_made = true;
    }
    Take({.op = op, .redone = frames_[f].call}, made);
  }

  const Trace& trace_;
  std::vector<NaiveFrame> frames_;
  std::vector<FrameState> states_;  // by frame
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
