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

bool HasValue(const std::vector<StorageId>& values, StorageId value) {
  return std::ranges::find(values, value) != values.end();
}

// A piece of memory: an original, which has its storage's number, or a copy.
enum class PieceId : int32_t {};

PieceId Original(StorageId storage) { return PieceId{IndexOf(storage)}; }

// Plays a step.
class Player {
 public:
  Player(const Trace& trace, const std::vector<CheckpointedModule>& modules)
      : trace_(trace),
        frames_(FramesOf(trace, modules)),
        states_(frames_.size()) {
    for (const StorageId s : trace_.storages.ids()) {
      pieces_.push_back(
          {.storage = s, .is_made = trace_.storages[s].born == kNone});
    }
    for (size_t f = 0; f < frames_.size(); ++f) {
      for (const TensorId t : trace_.calls[frames_[f].call].arguments) {
        states_[f].given_pieces.push_back(Original(trace_.tensors[t].storage));
      }
    }
    HoldOriginals();
    for (size_t f = 0; f < frames_.size(); ++f) ListMoved(f);
  }

  Simulation Play() {
    const auto count = static_cast<Time>(trace_.operators.size());
    for (Time time = 0; time <= count; ++time) {
      MoveAt(time);
      LetGo(time);
      for (size_t f = frames_.size(); f-- > 0;) {
        if (frames_[f].asked_at == time) RunAgain(f);
      }
      if (time == count) break;
      std::vector<PieceId> made_pieces;
      for (const StorageId s : trace_.operators[OperatorAt(time)].creates) {
        made_pieces.push_back(Original(s));
        pieces_[made_pieces.back()].is_made = true;
      }
      Take({.op = OperatorAt(time)}, made_pieces);
    }
    return result_;
  }

 private:
  struct Piece {
    StorageId storage = {};
    bool is_made = false;
    std::multiset<Time> ends = {};  // of its holders, in the trace's time
    int other_holders = 0;          // holders whose end is an event
  };
  struct FrameState {
    bool has_run = false;
    // The pieces of its arguments when it runs again, and the pieces that the
    // frame around it holds until it has run again.
    std::vector<PieceId> given_pieces = {}, until_it_ran = {};
  };
  struct LocalHold {
    Time end;  // in the forward pass
    PieceId piece;
  };

  // A call that runs again: the pieces that its storages and tensors are.
  struct Rerun {
    std::map<StorageId, PieceId> given_pieces;  // from outside of it
    std::map<StorageId, PieceId> storages;
    std::map<TensorId, PieceId> tensors;
    std::set<OperatorId> running;
    std::vector<LocalHold> holders;
  };

  const TraceCall& CallOf(size_t f) const {
    return trace_.calls[frames_[f].call];
  }

  void Hold(PieceId piece, Time end) { pieces_[piece].ends.insert(end); }

  void HoldOriginals() {
    const IndexedVector<StorageId, Time> held_until = HeldByOthers(trace_);
    for (const StorageId s : held_until.ids()) {
      Hold(Original(s), held_until[s]);
    }
    for (const SavedTensor& saved : trace_.saved) {
      bool is_outside = true;
      for (CallId c = saved.call; c != kNone; c = trace_.calls[c].parent) {
        is_outside =
            is_outside &&
            std::ranges::find(frames_, c, &NaiveFrame::call) == frames_.end();
      }
      if (is_outside) Hold(Original(saved.storage), HeldByAutogradUntil(saved));
    }
    for (size_t f = 0; f < frames_.size(); ++f) {
      const NaiveFrame& frame = frames_[f];
      for (const StorageId s : CallOf(f).inputs) {
        if (IsMovedArgument(frame, s)) continue;
        if (frame.parent < 0 || !HasValue(ArgumentsOf(f), s)) {
          Hold(Original(s), frame.released);
        }
      }
      for (const OperatorId op : CallOf(f).Operators()) {
        if (!IsSaved(trace_, frames_[f], op)) continue;
        for (const StorageId s : KeptStorages(trace_, frame, op)) {
          if (IsMoved(frame, s)) continue;
          // RunAgain releases the pieces whose turn is still to come.
          if (IsReached(frame) && StartOf(op) < frame.stop) {
            ++pieces_[Original(s)].other_holders;
          } else {
            Hold(Original(s), frame.released);
          }
        }
      }
    }
  }

  bool IsReached(const NaiveFrame& frame) const {
    return frame.asked_at <= static_cast<Time>(trace_.operators.size());
  }

  static bool IsMoved(const NaiveFrame& frame, StorageId storage) {
    return std::ranges::any_of(frame.moved_storages,
                               [&](const auto& moved_storage) {
                                 return moved_storage.second == storage;
                               });
  }

  static bool IsMovedArgument(const NaiveFrame& frame, StorageId storage) {
    return std::ranges::find(frame.moved_storages,
                             std::pair<OperatorId, StorageId>(
                                 kNone, storage)) != frame.moved_storages.end();
  }

  void ListMoved(size_t f) {
    const NaiveFrame& frame = frames_[f];
    for (const auto& [op, s] : frame.moved_storages) {
      ++pieces_[Original(s)].other_holders;
      places_[{f, s}] = result_.offload.storages.end_id();
      const int64_t bytes = trace_.storages[s].bytes;
      result_.offload.storages.push_back(
          {.call = frame.call, .storage = s, .op = op, .bytes = bytes});
      result_.offload.sent_bytes += bytes;
    }
  }

  void Note(OffloadEvent::Kind kind, size_t f, StorageId storage) {
    const MovedId place = places_.at({f, storage});
    OffloadUse& use = result_.offload;
    const StepId step = result_.steps.end_id();
    use.events.push_back({.kind = kind, .step = step, .storage = place});
    const int64_t bytes = use.storages[place].bytes;
    if (kind == OffloadEvent::Kind::kSend) host_bytes_ += bytes;
    if (kind == OffloadEvent::Kind::kUse || kind == OffloadEvent::Kind::kDrop) {
      host_bytes_ -= bytes;
    }
    use.host_peak_bytes = std::max(use.host_peak_bytes, host_bytes_);
  }

  bool IsThereBeyond(const NaiveFrame& frame, Time time) const {
    return IsReached(frame) || frame.released > time;
  }

  void MoveAt(Time time) {
    for (size_t f = 0; f < frames_.size(); ++f) {
      for (const auto& [op, s] : frames_[f].moved_storages) {
        const bool is_made = op != kNone && EndOf(op) == time;
        if (is_made) Note(OffloadEvent::Kind::kSend, f, s);
      }
    }
    for (size_t f = 0; f + 1 < frames_.size(); ++f) {
      const bool is_next_done = trace_.calls[frames_[f + 1].call].end == time;
      if (is_next_done && IsThereBeyond(frames_[f], time)) Release(f);
    }
    const auto count = static_cast<Time>(trace_.operators.size());
    for (size_t f = 0; f < frames_.size(); ++f) {
      const NaiveFrame& frame = frames_[f];
      if (IsReached(frame) || std::min(frame.released, count) != time) continue;
      for (const auto& [op, s] : frame.moved_storages) {
        Note(OffloadEvent::Kind::kDrop, f, s);
        if (!frame.is_released) --pieces_[Original(s)].other_holders;
      }
    }
    for (size_t f = 0; f < frames_.size(); ++f) {
      if (CallOf(f).start != time) continue;
      for (const auto& [op, s] : frames_[f].moved_storages) {
        if (op == kNone) Note(OffloadEvent::Kind::kSend, f, s);
      }
    }
  }

  void Release(size_t f) {
    if (frames_[f].is_released) return;
    frames_[f].is_released = true;
    for (const auto& [op, s] : frames_[f].moved_storages) {
      Note(OffloadEvent::Kind::kRelease, f, s);
      --pieces_[Original(s)].other_holders;
    }
  }

  // Moves storages back when call `f` begins to run again.
  void MoveBack(size_t f) {
    const Time now = frames_[f].asked_at;
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
      frame.fetched[s] = IndexOf(pieces_.Add({.storage = s, .is_made = true}));
      if (op == kNone) Hold(PieceOf(frame, s), frame.released);
    }
    for (size_t k = 0; k < states_[f].given_pieces.size(); ++k) {
      const StorageId s = trace_.tensors[CallOf(f).arguments[k]].storage;
      if (IsMovedArgument(frame, s)) {
        states_[f].given_pieces[k] = PieceOf(frame, s);
      }
    }
    const TraceCall& call = trace_.calls[frame.call];
    for (const OperatorId op : call.Operators()) {
      if (!IsSaved(trace_, frame, op)) continue;
      for (const StorageId s : KeptStorages(trace_, frame, op)) {
        if (!IsMoved(frame, s)) continue;
        if (IsReached(frame) && StartOf(op) < frame.stop) {
          ++pieces_[PieceOf(frame, s)].other_holders;
        } else {
          Hold(PieceOf(frame, s), frame.released);
        }
      }
    }
  }

  static PieceId PieceOf(const NaiveFrame& frame, StorageId storage) {
    const auto fetched = frame.fetched.find(storage);
    return fetched == frame.fetched.end() ? Original(storage)
                                          : PieceId{fetched->second};
  }

  void LetGo(Time time) {
    for (Piece& piece : pieces_) {
      piece.ends.erase(piece.ends.begin(), piece.ends.upper_bound(time));
    }
  }

  // Takes a step. Its results are there at least while it runs.
  void Take(Simulation::Step step, const std::vector<PieceId>& new_pieces) {
    int64_t live = 0;
    const std::set<PieceId> fresh(new_pieces.begin(), new_pieces.end());
    for (const PieceId p : pieces_.ids()) {
      const Piece& piece = pieces_[p];
      const bool is_before = result_.steps.empty() &&
                             p < Original(trace_.storages.end_id()) &&
                             trace_.storages[piece.storage].born == kNone;
      const bool is_held = !piece.ends.empty() || piece.other_holders > 0;
      if (fresh.contains(p) || is_before || (piece.is_made && is_held)) {
        live += (trace_.storages[piece.storage].bytes + 511) / 512 * 512;
      }
    }
    result_.steps.push_back(step);
    result_.live_bytes.push_back(live);
    if (step.redone != kNone) {
      result_.recompute_ms += trace_.operators[step.op].runtime_ms;
    }
  }

  static PieceId OfStorage(const Rerun& rerun, StorageId s) {
    const auto piece = rerun.storages.find(s);
    if (piece != rerun.storages.end()) return piece->second;
    const auto given_piece = rerun.given_pieces.find(s);
    return given_piece == rerun.given_pieces.end() ? Original(s)
                                                   : given_piece->second;
  }

  PieceId OfTensor(const Rerun& rerun, TensorId t) const {
    const auto piece = rerun.tensors.find(t);
    return piece == rerun.tensors.end()
               ? OfStorage(rerun, trace_.tensors[t].storage)
               : piece->second;
  }

  PieceId Copy(StorageId storage) { return pieces_.Add({.storage = storage}); }

  Rerun MakeAgain(size_t f) {
    const NaiveFrame& frame = frames_[f];
    Rerun rerun;
    // An argument that is given twice is the first of the two.
    for (size_t k = 0; k < states_[f].given_pieces.size(); ++k) {
      const TensorId t = CallOf(f).arguments[k];
      rerun.given_pieces.try_emplace(trace_.tensors[t].storage,
                                     states_[f].given_pieces[k]);
    }
    for (const auto& [op, s] : frame.moved_storages) {
      if (op == kNone) rerun.given_pieces.try_emplace(s, PieceOf(frame, s));
    }
    for (const NaiveRecast& recast : NaiveRecastsOf(trace_, frame)) {
      for (const StorageId s : trace_.operators[recast.op].creates) {
        rerun.given_pieces[s] = Copy(s);
        rerun.holders.push_back({kNever, rerun.given_pieces[s]});
      }
    }
    for (const OperatorId op : OperatorsIn(CallOf(f).start, frame.stop)) {
      const TraceOperator& now = trace_.operators[op];
      const OperatorDecision decision = DecisionOf(trace_, frame, op);
      bool runs = decision == OperatorDecision::kRecompute;
      if (runs && now.view) {
        for (const StorageId s : now.outputs) {
          runs = runs && OfStorage(rerun, s) != kNone;
        }
        for (const TensorId t : now.results) {
          const TensorId base = trace_.tensors[t].base;
          runs = runs && (base == kNone || OfTensor(rerun, base) != kNone);
        }
      }
      if (runs) rerun.running.insert(op);
      MakePieces(frame, op, rerun);
    }
    return rerun;
  }

  void MakePieces(const NaiveFrame& frame, OperatorId op, Rerun& rerun) {
    const TraceOperator& now = trace_.operators[op];
    const bool runs = rerun.running.contains(op);
    const bool is_saved = IsSaved(trace_, frame, op);
    for (const StorageId s : now.creates) {
      PieceId piece = kNone;
      if (is_saved && KeptStorages(trace_, frame, op).contains(s)) {
        piece = PieceOf(frame, s);
      }
      if (runs) piece = Copy(s);
      rerun.storages[s] = piece;
    }
    for (const TensorId t : now.results) {
      const TraceTensor& tensor = trace_.tensors[t];
      PieceId piece = kNone;
      if (is_saved) {
        if (IsTensorKept(trace_, frame, t))
          piece = PieceOf(frame, tensor.storage);
      } else if (runs || HasValue(now.mutates, tensor.storage)) {
        piece = tensor.base == kNone ? OfStorage(rerun, tensor.storage)
                                     : OfTensor(rerun, tensor.base);
      }
      rerun.tensors[t] = piece;
    }
  }

  static void HoldLocally(Rerun& rerun, PieceId piece, Time end) {
    if (piece != kNone) rerun.holders.push_back({end, piece});
  }

  // The program holds the call's results as it did before, until the call
  // stops.
  void HoldByTheProgram(Rerun& rerun) const {
    std::set<StorageId> told_apart;
    for (const auto& [t, piece] : rerun.tensors) {
      const StorageId s = trace_.tensors[t].storage;
      const bool is_made = rerun.storages.contains(s);
      if (piece != OfStorage(rerun, s) && (is_made || piece != kNone)) {
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
      const PieceId piece = saved.tensor == kNone
                                ? OfStorage(rerun, saved.storage)
                                : OfTensor(rerun, saved.tensor);
      if (piece == kNone) continue;
      std::set<PieceId> pieces = {piece};
      if (!saved.requires_grad) pieces.insert(OfStorage(rerun, saved.storage));
      pieces.erase(kNone);
      for (const PieceId p : pieces) {
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
    const Time stop = frames_[f].stop;
    for (size_t g = f + 1; g < frames_.size(); ++g) {
      const NaiveFrame& inner = frames_[g];
      if (CallOf(g).start >= CallOf(f).end || CallOf(g).start > stop) continue;
      if (!IsInside(g, f)) continue;
      const bool lets_go = inner.released <= frames_[f].asked_at;
      const Time end = lets_go ? inner.released : kNever;
      if (inner.parent == static_cast<int>(f)) GiveArguments(g, end, rerun);
      std::vector<PieceId> held_pieces;
      for (const StorageId s : CallOf(g).inputs) {
        const bool is_given = HasValue(ArgumentsOf(g), s);
        if (inner.parent == static_cast<int>(f) || !is_given) {
          held_pieces.push_back(OfStorage(rerun, s));
        }
      }
      for (const OperatorId op :
           OperatorsIn(CallOf(g).start, std::min(CallOf(g).end, stop))) {
        if (IsSaved(trace_, frames_[g], op)) AddKept(g, op, rerun, held_pieces);
      }
      for (const PieceId piece : held_pieces) HoldLocally(rerun, piece, end);
    }
  }

  bool IsInside(size_t g, size_t f) const {
    auto outer = frames_[g].parent;
    while (outer >= 0 && outer != static_cast<int>(f)) {
      outer = frames_[outer].parent;
    }
    return outer >= 0;
  }

  std::vector<StorageId> ArgumentsOf(size_t g) const {
    std::vector<StorageId> storages;
    for (const TensorId t : CallOf(g).arguments) {
      storages.push_back(trace_.tensors[t].storage);
    }
    return storages;
  }

  void GiveArguments(size_t g, Time end, Rerun& rerun) {
    FrameState& state = states_[g];
    for (size_t k = 0; k < state.given_pieces.size(); ++k) {
      const PieceId piece = OfTensor(rerun, CallOf(g).arguments[k]);
      state.given_pieces[k] = piece;
      HoldLocally(rerun, piece, end);
      if (end != kNever || piece == kNone) continue;
      if (IsReached(frames_[g])) {
        state.until_it_ran.push_back(piece);
        ++pieces_[piece].other_holders;
      } else {
        Hold(piece, frames_[g].released);
      }
    }
  }

  // Adds the pieces of an operator that the policy of a frame inside keeps.
  void AddKept(size_t g, OperatorId op, const Rerun& rerun,
               std::vector<PieceId>& held_pieces) const {
    const TraceOperator& now = trace_.operators[op];
    for (const TensorId t : now.results) {
      if (IsTensorKept(trace_, frames_[g], t)) {
        held_pieces.push_back(OfTensor(rerun, t));
      }
    }
    if (!now.results.empty()) return;
    for (const StorageId s : now.outputs)
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
    for (const OperatorId op : OperatorsIn(CallOf(f).start, frame.stop)) {
      LetGoLocally(StartOf(op), rerun);
      CastAgain(f, op, recasts, rerun);
      if (IsSaved(trace_, frames_[f], op)) {
        for (const StorageId s : KeptStorages(trace_, frame, op)) {
          --pieces_[PieceOf(frame, s)].other_holders;
        }
      }
      if (rerun.running.contains(op)) {
        Redo(f, op, rerun);
      }
    }
    CastAgain(f, OperatorAt(frame.stop), recasts, rerun);
    LetGoLocally(kNever, rerun);
    for (const PieceId p : states_[f].until_it_ran) --pieces_[p].other_holders;
    // Releases the pieces that ended before or at this time.
    LetGo(frame.asked_at);
  }

  void LetGoLocally(Time time, Rerun& rerun) {
    std::erase_if(rerun.holders, [&](const LocalHold& hold) {
      if (hold.end > time) return false;
      --pieces_[hold.piece].other_holders;
      return true;
    });
  }

  void CastAgain(size_t f, OperatorId user,
                 const std::vector<NaiveRecast>& recasts, const Rerun& rerun) {
    for (const NaiveRecast& recast : recasts) {
      if (recast.user == user) Redo(f, recast.op, rerun);
    }
  }

  void Redo(size_t f, OperatorId op, const Rerun& rerun) {
    std::vector<PieceId> new_pieces;
    for (const StorageId s : trace_.operators[op].creates) {
      new_pieces.push_back(OfStorage(rerun, s));
      pieces_[new_pieces.back()].is_made = true;
    }
    Take({.op = op, .redone = frames_[f].call}, new_pieces);
  }

  const Trace& trace_;
  std::vector<NaiveFrame> frames_;
  std::vector<FrameState> states_;  // by frame
  bool has_run_again_ = false;
  std::map<std::pair<size_t, StorageId>, MovedId> places_;
  int64_t host_bytes_ = 0;
  IndexedVector<PieceId, Piece> pieces_;
  Simulation result_;
};

}  // namespace

Simulation SimulateNaively(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules) {
  return Player(trace, modules).Play();
}

}  // namespace acplan::graph
