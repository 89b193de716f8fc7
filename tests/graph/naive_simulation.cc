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
        states_[f].given_pieces.push_back(trace_.tensors[t].storage);
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
        if (frames_[f].asked_at == time) RunAgain(f);
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
    std::vector<int32_t> given_pieces = {}, until_it_ran = {};
  };
  struct LocalHold {
    int32_t end;  // in the forward pass
    int32_t piece;
  };

  // A call that runs again: the pieces that its storages and tensors are.
  struct Rerun {
    std::map<int32_t, int32_t> given_pieces;  // storages from outside of it
    std::map<int32_t, int32_t> storages, tensors;
    std::set<int32_t> running;  // operators
    std::vector<LocalHold> holders;
  };

  const TraceCall& CallOf(size_t f) const {
    return trace_.calls[frames_[f].call];
  }

  void Hold(int32_t piece, int32_t end) { pieces_[piece].ends.insert(end); }

  void HoldOriginals() {
    const std::vector<int32_t> held_until = HeldByOthers(trace_);
    for (int32_t s = 0; s < std::ssize(held_until); ++s) {
      Hold(s, held_until[s]);
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
        if (frame.parent < 0 || !HasValue(states_[f].given_pieces, s)) {
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
    return frame.asked_at <= std::ssize(trace_.operators);
  }

  static bool IsMoved(const NaiveFrame& frame, int32_t storage) {
    return std::ranges::any_of(frame.moved_storages,
                               [&](const auto& moved_storage) {
                                 return moved_storage.second == storage;
                               });
  }

  void ListMoved(size_t f) {
    const NaiveFrame& frame = frames_[f];
    for (const auto& [op, s] : frame.moved_storages) {
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
      for (const auto& [op, s] : frames_[f].moved_storages) {
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
      for (const auto& [op, s] : frame.moved_storages) {
        Note(OffloadEvent::Kind::kDrop, f, s);
        if (!frame.is_released) --pieces_[s].other_holders;
      }
    }
  }

  void Release(size_t f) {
    if (frames_[f].is_released) return;
    frames_[f].is_released = true;
    for (const auto& [op, s] : frames_[f].moved_storages) {
      Note(OffloadEvent::Kind::kRelease, f, s);
      --pieces_[s].other_holders;
    }
  }

  // Moves storages back when call `f` begins to run again.
  void MoveBack(size_t f) {
    const int32_t now = frames_[f].asked_at;
    Release(f);
    if (!has_run_again_ && IsThereBeyond(frames_.back(), now)) {
      Release(frames_.size() - 1);
    }
    has_run_again_ = true;
    Fetch(f);
    if (f > 0 && IsThereBeyond(frames_[f - 1], now)) Fetch(f - 1);
    for (const auto& [op, s] : frames_[f].moved_storages) {
      Note(OffloadEvent::Kind::kUse, f, s);
    }
  }

  void Fetch(size_t f) {
    NaiveFrame& frame = frames_[f];
    if (frame.is_fetched) return;
    frame.is_fetched = true;
    for (const auto& [op, s] : frame.moved_storages) {
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

  static int32_t PieceOf(const NaiveFrame& frame, int32_t storage) {
    const auto fetched = frame.fetched.find(storage);
    return fetched == frame.fetched.end() ? storage : fetched->second;
  }

  void LetGo(int32_t time) {
    for (Piece& piece : pieces_) {
      piece.ends.erase(piece.ends.begin(), piece.ends.upper_bound(time));
    }
  }

  // Takes a step. Its results are there at least while it runs.
  void Take(Simulation::Step step, const std::vector<int32_t>& new_pieces) {
    int64_t live = 0;
    const std::set<int32_t> fresh(new_pieces.begin(), new_pieces.end());
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

  static int32_t OfStorage(const Rerun& rerun, int32_t s) {
    const auto piece = rerun.storages.find(s);
    if (piece != rerun.storages.end()) return piece->second;
    const auto given_piece = rerun.given_pieces.find(s);
    return given_piece == rerun.given_pieces.end() ? s : given_piece->second;
  }

  int32_t OfTensor(const Rerun& rerun, int32_t t) const {
    const auto piece = rerun.tensors.find(t);
    return piece == rerun.tensors.end()
               ? OfStorage(rerun, trace_.tensors[t].storage)
               : piece->second;
  }

  int32_t Copy(int32_t storage) {
    pieces_.push_back({.storage = storage});
    return static_cast<int32_t>(pieces_.size()) - 1;
  }

  Rerun MakeAgain(size_t f) {
    const NaiveFrame& frame = frames_[f];
    Rerun rerun;
    // An argument that is given twice is the first of the two.
    for (size_t k = 0; k < states_[f].given_pieces.size(); ++k) {
      const int32_t t = CallOf(f).arguments[k];
      rerun.given_pieces.try_emplace(trace_.tensors[t].storage,
                                     states_[f].given_pieces[k]);
    }
    for (const NaiveRecast& recast : NaiveRecastsOf(trace_, frame)) {
      for (const int32_t s : trace_.operators[recast.op].creates) {
        rerun.given_pieces[s] = Copy(s);
        rerun.holders.push_back({kNever, rerun.given_pieces[s]});
      }
    }
    for (int32_t op = CallOf(f).start; op < frame.stop; ++op) {
      const TraceOperator& now = trace_.operators[op];
      const OperatorDecision decision = DecisionOf(trace_, frame, op);
      bool runs = decision == OperatorDecision::kRecompute;
      if (runs && now.view) {
        for (const int32_t s : now.outputs) {
          runs = runs && OfStorage(rerun, s) != kNothing;
        }
        for (const int32_t t : now.results) {
          const int32_t base = trace_.tensors[t].base;
          runs = runs && (base < 0 || OfTensor(rerun, base) != kNothing);
        }
      }
      if (runs) rerun.running.insert(op);
      MakePieces(frame, op, rerun);
    }
    return rerun;
  }

  void MakePieces(const NaiveFrame& frame, int32_t op, Rerun& rerun) {
    const TraceOperator& now = trace_.operators[op];
    const bool runs = rerun.running.contains(op);
    const bool is_saved = IsSaved(trace_, frame, op);
    for (const int32_t s : now.creates) {
      int32_t piece = kNothing;
      if (is_saved && KeptStorages(trace_, frame, op).contains(s)) {
        piece = PieceOf(frame, s);
      }
      if (runs) piece = Copy(s);
      rerun.storages[s] = piece;
    }
    for (const int32_t t : now.results) {
      const TraceTensor& tensor = trace_.tensors[t];
      int32_t piece = kNothing;
      if (is_saved) {
        if (IsTensorKept(trace_, frame, t))
          piece = PieceOf(frame, tensor.storage);
      } else if (runs || HasValue(now.mutates, tensor.storage)) {
        piece = tensor.base < 0 ? OfStorage(rerun, tensor.storage)
                                : OfTensor(rerun, tensor.base);
      }
      rerun.tensors[t] = piece;
    }
  }

  static void HoldLocally(Rerun& rerun, int32_t piece, int32_t end) {
    if (piece != kNothing) rerun.holders.push_back({end, piece});
  }

  // The program holds the call's results as it did before, until the call
  // stops.
  void HoldByTheProgram(Rerun& rerun) const {
    std::set<int32_t> told_apart;
    for (const auto& [t, piece] : rerun.tensors) {
      const int32_t s = trace_.tensors[t].storage;
      const bool is_made = rerun.storages.contains(s);
      if (piece != OfStorage(rerun, s) && (is_made || piece != kNothing)) {
        told_apart.insert(s);
      }
    }
    for (const auto& [t, piece] : rerun.tensors) {
      if (told_apart.contains(trace_.tensors[t].storage)) {
        HoldLocally(rerun, piece, trace_.tensors[t].scope_end);
      }
    }
    for (const auto& [s, piece] : rerun.storages) {
      if (!told_apart.contains(s)) {
        HoldLocally(rerun, piece, trace_.storages[s].scope_end);
      }
    }
  }

  void HoldByAutograd(size_t f, Rerun& rerun) {
    for (const SavedTensor& saved : frames_[f].saved) {
      const int32_t piece = saved.tensor < 0 ? OfStorage(rerun, saved.storage)
                                             : OfTensor(rerun, saved.tensor);
      if (piece == kNothing) continue;
      std::set<int32_t> pieces = {piece};
      if (!saved.requires_grad) pieces.insert(OfStorage(rerun, saved.storage));
      pieces.erase(kNothing);
      for (const int32_t p : pieces) {
        if (saved.released <= frames_[f].asked_at) {
          HoldLocally(rerun, p, saved.released);
          continue;
        }
        HoldLocally(rerun, p, kNever);
        Hold(p, saved.unpacked == kNever ? saved.released : saved.local_end);
      }
    }
  }

  // The calls of units inside begin and end again, and those that backward asks
  // for take their arguments from here.
  void HoldByFramesInside(size_t f, Rerun& rerun) {
    const int32_t stop = frames_[f].stop;
    for (size_t g = f + 1; g < frames_.size(); ++g) {
      const NaiveFrame& inner = frames_[g];
      if (CallOf(g).start >= CallOf(f).end || CallOf(g).start > stop) continue;
      if (!IsInside(g, f)) continue;
      const bool lets_go = inner.released <= frames_[f].asked_at;
      const int32_t end = lets_go ? inner.released : kNever;
      if (inner.parent == static_cast<int>(f)) GiveArguments(g, end, rerun);
      std::vector<int32_t> held_pieces;
      for (const int32_t s : CallOf(g).inputs) {
        const bool is_given = HasValue(ArgumentsOf(g), s);
        if (inner.parent == static_cast<int>(f) || !is_given) {
          held_pieces.push_back(OfStorage(rerun, s));
        }
      }
      for (int32_t op = CallOf(g).start; op < std::min(CallOf(g).end, stop);
           ++op) {
        if (IsSaved(trace_, frames_[g], op)) AddKept(g, op, rerun, held_pieces);
      }
      for (const int32_t piece : held_pieces) HoldLocally(rerun, piece, end);
    }
  }

  bool IsInside(size_t g, size_t f) const {
    auto outer = frames_[g].parent;
    while (outer >= 0 && outer != static_cast<int>(f)) {
      outer = frames_[outer].parent;
    }
    return outer >= 0;
  }

  std::vector<int32_t> ArgumentsOf(size_t g) const {
    std::vector<int32_t> storages;
    for (const int32_t t : CallOf(g).arguments) {
      storages.push_back(trace_.tensors[t].storage);
    }
    return storages;
  }

  void GiveArguments(size_t g, int32_t end, Rerun& rerun) {
    FrameState& state = states_[g];
    for (size_t k = 0; k < state.given_pieces.size(); ++k) {
      const int32_t piece = OfTensor(rerun, CallOf(g).arguments[k]);
      state.given_pieces[k] = piece;
      HoldLocally(rerun, piece, end);
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
  void AddKept(size_t g, int32_t op, const Rerun& rerun,
               std::vector<int32_t>& held_pieces) const {
    const TraceOperator& now = trace_.operators[op];
    for (const int32_t t : now.results) {
      if (IsTensorKept(trace_, frames_[g], t)) {
        held_pieces.push_back(OfTensor(rerun, t));
      }
    }
    if (!now.results.empty()) return;
    for (const int32_t s : now.outputs)
      held_pieces.push_back(OfStorage(rerun, s));
  }

  void RunAgain(size_t f) {
    const NaiveFrame& frame = frames_[f];
    if (states_[f].has_run) return;
    if (IsSavedAround(trace_, frame)) RunAgain(frame.parent);
    states_[f].has_run = true;
    MoveBack(f);
    Rerun rerun = MakeAgain(f);
    HoldByTheProgram(rerun);
    HoldByAutograd(f, rerun);
    HoldByFramesInside(f, rerun);
    for (const LocalHold& hold : rerun.holders) {
      ++pieces_[hold.piece].other_holders;
    }
    const std::vector<NaiveRecast> recasts = NaiveRecastsOf(trace_, frame);
    for (int32_t op = CallOf(f).start; op < frame.stop; ++op) {
      LetGoLocally(op, rerun);
      CastAgain(f, op, recasts, rerun);
      if (IsSaved(trace_, frames_[f], op)) {
        for (const int32_t s : KeptStorages(trace_, frame, op)) {
          --pieces_[PieceOf(frame, s)].other_holders;
        }
      }
      if (rerun.running.contains(op)) {
        Redo(f, op, rerun);
      }
    }
    CastAgain(f, frame.stop, recasts, rerun);
    LetGoLocally(kNever, rerun);
    for (const int32_t p : states_[f].until_it_ran) --pieces_[p].other_holders;
    // Releases the pieces that ended before or at this time.
    LetGo(frame.asked_at);
  }

  void LetGoLocally(int32_t time, Rerun& rerun) {
    std::erase_if(rerun.holders, [&](const LocalHold& hold) {
      if (hold.end > time) return false;
      --pieces_[hold.piece].other_holders;
      return true;
    });
  }

  void CastAgain(size_t f, int32_t user,
                 const std::vector<NaiveRecast>& recasts, const Rerun& rerun) {
    for (const NaiveRecast& recast : recasts) {
      if (recast.user == user) Redo(f, recast.op, rerun);
    }
  }

  void Redo(size_t f, int32_t op, const Rerun& rerun) {
    std::vector<int32_t> new_pieces;
    for (const int32_t s : trace_.operators[op].creates) {
      new_pieces.push_back(OfStorage(rerun, s));
      pieces_[new_pieces.back()].is_made = true;
    }
    Take({.op = op, .redone = frames_[f].call}, new_pieces);
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
