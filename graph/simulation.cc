#include "graph/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "graph/input_error.h"

namespace acplan::graph {

namespace {

constexpr int64_t kAllocationUnit = 512;

int64_t Rounded(int64_t bytes) {
  return (bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
}

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

struct Cast {
  int32_t op;
  int32_t before;   // the operator that needs it
  int64_t at = -1;  // its step
};

// A call of a unit.
struct Frame {
  int32_t call = 0;
  int32_t around = -1;  // the frame directly around it
  int32_t end = 0;      // after the last of the frames inside it
  const CheckpointedModule* unit = nullptr;
  std::vector<int32_t> saved =
      {};                        // in Trace::saved, not those of frames inside
  int32_t ends = 0;              // when autograd lets go of the last of that
  int32_t redone = kNever;       // when its operators run again, if they do
  int32_t stop = 0;              // the operator before which they stop
  std::vector<Cast> casts = {};  // that run again, in order
  // Positions among the steps: after the last that runs again; by operator of
  // what comes before it, and of itself.
  bool is_laid_out = false;
  int64_t redo_end = 0;
  std::vector<int64_t> again = {};
  std::vector<int64_t> runs_at = {};
  // By storage, from first_storage on: the life of its copy, or -1.
  int32_t first_storage = 0;
  std::vector<int32_t> copies = {};
  // By argument that is a tensor given by position: its storage, and the life
  // that it is part of when the call runs again.
  std::vector<std::pair<int32_t, int32_t>> arguments = {};
};

// Where a storage is in use: steps [begin, end).
struct Life {
  int32_t storage;
  int64_t begin, end;
};

class Simulator {
 public:
  Simulator(const Trace& trace, const std::vector<CheckpointedModule>& modules)
      : trace_(trace), count_(static_cast<int32_t>(trace.operators.size())) {
    for (int32_t t = 0; t < std::ssize(trace.tensors); ++t) {
      if (trace.tensors[t].op >= 0) made_.push_back(t);
    }
    MakeFrames(modules);
    FindWhenFramesRunAgain();
    for (const Frame& frame : frames_) RefuseWhatPyTorchRefuses(frame);
  }

  Simulation Run() {
    LayOutSteps();
    FindLives();
    AddUp();
    return std::move(result_);
  }

 private:
  const TraceCall& CallOf(const Frame& frame) const {
    return trace_.calls[frame.call];
  }

  bool Saves(const Frame& frame, int32_t op) const {
    const std::vector<char>& save = frame.unit->save;
    return !save.empty() && save[op - CallOf(frame).start] != 0;
  }

  // Whether the frame's arguments are saves of the frame around it.
  static bool IsSavedAround(const Frame& frame) {
    return frame.around >= 0 && !frame.arguments.empty();
  }

  static bool IsArgument(const Frame& frame, int32_t storage) {
    return std::ranges::find(frame.arguments, storage,
                             &std::pair<int32_t, int32_t>::first) !=
           frame.arguments.end();
  }

  [[noreturn]] void Refuse(const Frame& frame, const std::string& why) const {
    throw InputError(fmt::format(
        "module '{}': {}", trace_.modules[CallOf(frame).module].fqn, why));
  }

  const std::string& Name(int32_t op) const {
    return trace_.operator_names[trace_.operators[op].name];
  }

  void MakeFrames(const std::vector<CheckpointedModule>& modules) {
    std::vector<const CheckpointedModule*> unit_of(trace_.modules.size());
    for (const CheckpointedModule& unit : modules) {
      unit_of[unit.module] = &unit;
    }
    frame_of_.assign(trace_.calls.size(), -1);
    std::vector<char> is_called(trace_.modules.size(), 0);
    for (int32_t c = 0; c < std::ssize(trace_.calls); ++c) {
      const TraceCall& call = trace_.calls[c];
      const int32_t around = call.parent < 0 ? -1 : frame_of_[call.parent];
      frame_of_[c] = around;
      is_called[call.module] = 1;
      const CheckpointedModule* unit = unit_of[call.module];
      if (unit == nullptr) continue;
      Frame frame = {.call = c, .around = around, .unit = unit};
      const auto length = static_cast<size_t>(call.end - call.start);
      if (!unit->save.empty() && unit->save.size() != length) {
        Refuse(frame, fmt::format("expected a decision for each of the {} "
                                  "operators of a call, found {}",
                                  length, unit->save.size()));
      }
      if (call.no_grad) continue;
      for (const int32_t t : call.arguments) {
        const int32_t storage = trace_.tensors[t].storage;
        frame.arguments.emplace_back(storage, storage);
      }
      frame_of_[c] = static_cast<int32_t>(frames_.size());
      frames_.push_back(std::move(frame));
    }
    for (const CheckpointedModule& unit : modules) {
      if (!is_called[unit.module]) {
        throw InputError(
            fmt::format("module '{}': expected one that is called, found none",
                        trace_.modules[unit.module].fqn));
      }
    }
    for (int32_t s = 0; s < std::ssize(trace_.saved); ++s) {
      const int32_t call = trace_.saved[s].call;
      const int32_t f = call < 0 ? -1 : frame_of_[call];
      if (f >= 0) frames_[f].saved.push_back(s);
    }
  }

  // From the frames inside to those around them.
  void FindWhenFramesRunAgain() {
    for (auto f = static_cast<int32_t>(frames_.size()) - 1; f >= 0; --f) {
      Frame& frame = frames_[f];
      frame.end = std::max(frame.end, f + 1);
      frame.ends = std::max(frame.ends, CallOf(frame).end);
      for (const int32_t s : frame.saved) {
        const SavedTensor& saved = trace_.saved[s];
        frame.ends = std::max(frame.ends, saved.released);
        frame.redone = std::min(frame.redone, saved.unpacked);
        frame.stop = std::max(frame.stop, saved.packed);
      }
      FindCasts(frame);
      if (frame.around < 0) continue;
      Frame& around = frames_[frame.around];
      around.end = std::max(around.end, frame.end);
      if (!IsSavedAround(frame)) continue;
      around.ends = std::max(around.ends, frame.ends);
      around.redone = std::min(around.redone, frame.redone);
      around.stop = std::max(around.stop, CallOf(frame).start);
    }
  }

  void FindCasts(Frame& frame) const {
    const TraceCall& call = CallOf(frame);
    // What stops at a save of an operator's argument has cast all of them.
    const bool casts_at_stop =
        !frame.saved.empty() && frame.stop < call.end &&
        Contains(trace_.operators[frame.stop].reads,
                 trace_.saved[frame.saved.back()].storage);
    const int32_t end = casts_at_stop ? frame.stop + 1 : frame.stop;
    for (int32_t op = call.start; op < end; ++op) {
      for (const int32_t cast : trace_.operators[op].recasts) {
        const bool is_made = cast >= call.start ||
                             std::ranges::find(frame.casts, cast, &Cast::op) !=
                                 frame.casts.end();
        if (!is_made) frame.casts.push_back({cast, op});
      }
    }
  }

  void RefuseWhatPyTorchRefuses(const Frame& frame) const {
    if (frame.redone == kNever) return;
    const TraceCall& call = CallOf(frame);
    for (const int32_t s : frame.saved) {
      if (!trace_.saved[s].unpacked_again) continue;
      Refuse(frame,
             "cannot be a unit: backward asks for a tensor saved in it twice, "
             "which PyTorch refuses");
    }
    if (!frame.unit->save.empty() && !frame.casts.empty()) {
      const int32_t cast = frame.casts[0].op;
      Refuse(frame,
             fmt::format("cannot have a policy: autocast cast a weight that it "
                         "uses before the call (operator {}), and would cast "
                         "it again, which PyTorch then refuses",
                         cast));
    }
    for (int32_t op = call.start; op < frame.redone && op < count_; ++op) {
      for (const int32_t s : trace_.operators[op].mutates) {
        if (frame.around < 0 && IsArgument(frame, s)) {
          Refuse(frame, fmt::format("cannot be a unit: operator {} ({}) of the "
                                    "step writes to an argument of it in "
                                    "place, which PyTorch refuses",
                                    op, Name(op)));
        }
      }
    }
    if (!frame.unit->save.empty()) RefuseWrittenResults(frame);
  }

  // A result that is written to in place later is as it was in the end when the
  // call runs again, so all that writes to it must have been saved with it, and
  // nothing that runs again may have read it before.
  void RefuseWrittenResults(const Frame& frame) const {
    const int32_t start = CallOf(frame).start;
    const int32_t last = std::min(CallOf(frame).end, frame.stop);
    const auto refuse = [&](int32_t saved, const std::string& why) {
      Refuse(frame, fmt::format("operator {} ({}) cannot be saved: {}",
                                saved - start, Name(saved), why));
    };
    std::map<int32_t, int32_t> saved_by;  // a storage: the operator
    std::map<int32_t, int32_t> read_by;   // one that runs again, since then
    for (int32_t op = start; op < frame.redone && op < count_; ++op) {
      const TraceOperator& now = trace_.operators[op];
      const bool is_saved = op < last && Saves(frame, op);
      for (const int32_t s : now.mutates) {
        const auto found = saved_by.find(s);
        const std::string writer =
            fmt::format("operator {} ({}) writes to its result in place",
                        op - start, Name(op));
        if (found != saved_by.end() && !is_saved) {
          refuse(found->second, writer + " later, and is not saved");
        }
        const int32_t born = trace_.storages[s].born;
        if (found == saved_by.end() && is_saved && born >= start) {
          refuse(op, "it writes in place to what is not saved");
        }
        if (found == saved_by.end()) continue;
        if (const auto reader = read_by.find(s); reader != read_by.end()) {
          refuse(found->second,
                 fmt::format("{} later, and operator {} ({}), which runs "
                             "again, reads it before",
                             writer, reader->second - start,
                             Name(reader->second)));
        }
      }
      if (op >= last) continue;
      for (const int32_t s : now.reads) {
        if (!is_saved && !now.view && saved_by.contains(s)) read_by[s] = op;
      }
      if (!is_saved) continue;
      for (const int32_t s : now.outputs) {
        saved_by[s] = op;
        if (!now.view) read_by.erase(s);
      }
    }
  }

  // The steps, and for every time the place among them.
  void LayOutSteps() {
    std::vector<std::vector<int32_t>> redone_at(count_ + 1);
    for (int32_t f = 0; f < std::ssize(frames_); ++f) {
      if (frames_[f].redone <= count_)
        redone_at[frames_[f].redone].push_back(f);
    }
    before_.resize(count_ + 1);
    after_.resize(count_ + 1);
    for (int32_t t = 0; t <= count_; ++t) {
      before_[t] = std::ssize(result_.steps);
      // Backward meets the last call first.
      for (size_t k = redone_at[t].size(); k-- > 0;) {
        LayOutAgain(frames_[redone_at[t][k]]);
      }
      after_[t] = std::ssize(result_.steps);
      if (t < count_) result_.steps.push_back({.op = t});
    }
  }

  void LayOutAgain(Frame& frame) {
    if (frame.is_laid_out) return;
    if (IsSavedAround(frame)) LayOutAgain(frames_[frame.around]);
    frame.is_laid_out = true;
    auto cast = frame.casts.begin();
    const auto run_casts_before = [&](int32_t op) {
      for (; cast != frame.casts.end() && cast->before == op; ++cast) {
        cast->at = std::ssize(result_.steps);
        RunAgain(frame, cast->op);
      }
    };
    for (int32_t op = CallOf(frame).start; op < frame.stop; ++op) {
      frame.again.push_back(std::ssize(result_.steps));
      run_casts_before(op);
      if (!Saves(frame, op)) {
        frame.runs_at.push_back(std::ssize(result_.steps));
        RunAgain(frame, op);
      } else {
        frame.runs_at.push_back(-1);
      }
    }
    run_casts_before(frame.stop);
    frame.redo_end = std::ssize(result_.steps);
  }

  void RunAgain(const Frame& frame, int32_t op) {
    result_.steps.push_back({.op = op, .redone = frame.call});
    result_.recompute_ms += trace_.operators[op].runtime_ms;
  }

  // The step before which what happens at a time has happened: nodes of the
  // backward pass let go of what they used before the next one asks.
  int64_t Before(int32_t time) const {
    return time > count_ ? std::ssize(result_.steps) : before_[time];
  }

  // The same for a time of the forward pass when the frame runs again.
  int64_t Again(const Frame& frame, int32_t time) const {
    return time < frame.stop ? frame.again[time - CallOf(frame).start]
                             : frame.redo_end;
  }

  void Hold(int32_t life, int64_t end) {
    lives_[life].end = std::max(lives_[life].end, end);
  }

  // Lives are first of all those of the storages as they were, in their order.
  void FindLives() {
    const auto n = static_cast<int32_t>(trace_.storages.size());
    for (int32_t s = 0; s < n; ++s) {
      const int32_t born = trace_.storages[s].born;
      lives_.push_back({s, born < 0 ? 0 : after_[born], 0});
    }
    FindRemadeAttributes();
    std::vector<int32_t> explained(n,
                                   0);  // until when the trace knows a holder
    for (const SavedTensor& saved : trace_.saved) {
      // A backward node may hand on what it asked for.
      const int32_t end = saved.unpacked == kNever
                              ? saved.released
                              : std::max(saved.released, saved.local_end);
      explained[saved.storage] = std::max(explained[saved.storage], end);
      if (saved.call < 0 || frame_of_[saved.call] < 0) {
        Hold(saved.storage, Before(end));
      }
    }
    for (const Frame& frame : frames_) {
      for (const int32_t s : CallOf(frame).inputs) {
        if (frame.around < 0 || !IsArgument(frame, s)) {
          Hold(s, Before(frame.ends));
        }
      }
    }
    for (int32_t s = 0; s < n; ++s) {
      const TraceStorage& storage = trace_.storages[s];
      const bool of_forward =
          storage.born >= 0 && storage.born < trace_.forward_end;
      if (!of_forward) {
        Hold(s, Before(storage.freed));
        continue;
      }
      if (const auto remade = remade_.find(s); remade != remade_.end()) {
        Hold(s, remade->second.at(-1));
        continue;
      }
      Hold(s, Before(std::min(storage.scope_end, storage.freed)));
      // Something unseen holds on.
      if (std::max(storage.scope_end, explained[s]) < storage.freed) {
        Hold(s, Before(storage.freed));
      }
    }
    for (int32_t f = 0; f < std::ssize(frames_); ++f) AddFrame(f);
  }

  // Storages that modules keep and that run again: when the one that a frame
  // made is replaced, and the original one (-1).
  void FindRemadeAttributes() {
    for (const KeptAttribute& kept : trace_.kept) {
      const int32_t born = trace_.storages[kept.storage].born;
      int32_t last = -1;
      for (int32_t f = 0; f < std::ssize(frames_); ++f) {
        const Frame& frame = frames_[f];
        const bool is_remade = frame.is_laid_out &&
                               CallOf(frame).start <= born &&
                               born < frame.stop && kept.since <= frame.stop;
        if (!is_remade) continue;
        std::map<int32_t, int64_t>& ends = remade_[kept.storage];
        ends[last] = Again(frame, kept.since);
        ends[f] = std::ssize(result_.steps);
        last = f;
      }
    }
  }

  // The life of a storage as a frame that runs again sees it.
  int32_t LifeIn(int32_t f, int32_t storage) const {
    const Frame& frame = frames_[f];
    const int32_t place = storage - frame.first_storage;
    if (place >= 0 && place < std::ssize(frame.copies) &&
        frame.copies[place] >= 0) {
      return frame.copies[place];
    }
    const auto argument = std::ranges::find(
        frame.arguments, storage, &std::pair<int32_t, int32_t>::first);
    return argument == frame.arguments.end() ? storage : argument->second;
  }

  // What a call keeps, and creates anew.
  void AddFrame(int32_t f) {
    const Frame& frame = frames_[f];
    const TraceCall& call = CallOf(frame);
    if (!frame.unit->save.empty()) {
      for (int32_t op = call.start; op < call.end; ++op) {
        if (!Saves(frame, op)) continue;
        const bool is_reached = frame.is_laid_out && op < frame.stop;
        const int64_t end =
            is_reached ? Again(frame, op + 1) : Before(frame.ends);
        for (const int32_t s : trace_.operators[op].outputs) Hold(s, end);
      }
    }
    if (!frame.is_laid_out) return;
    AddCopies(f);
    const TensorLives tensors = LivesOfTensors(f);
    stuck_ = StuckOperators(f);
    HoldByTheProgram(f, tensors);
    HoldByAutograd(f, tensors);
    HoldByFramesInside(f, tensors);
  }

  void AddCopies(int32_t f) {
    Frame& frame = frames_[f];
    int32_t least = kNever;
    int32_t most = -1;
    const auto created = [&](const auto& act) {
      for (int32_t op = CallOf(frame).start; op < frame.stop; ++op) {
        if (Saves(frame, op)) continue;
        for (const int32_t s : trace_.operators[op].creates) {
          act(s, frame.runs_at[op - CallOf(frame).start]);
        }
      }
      for (const Cast& cast : frame.casts) {
        for (const int32_t s : trace_.operators[cast.op].creates) {
          act(s, cast.at);
        }
      }
    };
    created([&](int32_t s, int64_t) {
      least = std::min(least, s);
      most = std::max(most, s);
    });
    if (most < 0) return;
    frame.first_storage = least;
    frame.copies.assign(most - least + 1, -1);
    created([&](int32_t s, int64_t at) {
      frame.copies[s - least] = static_cast<int32_t>(lives_.size());
      lives_.push_back({s, at, at});
    });
  }

  // The lives of the tensors that a frame's operators make again, where its
  // policy saves any.
  struct TensorLives {
    int32_t first = 0;  // in Trace::tensors
    std::vector<int32_t> lives;
  };

  TensorLives LivesOfTensors(int32_t f) const {
    const Frame& frame = frames_[f];
    const int32_t start = CallOf(frame).start;
    if (frame.unit->save.empty()) return {};
    const auto first_made_from = [&](int32_t op) {
      const auto found = std::ranges::lower_bound(
          made_, op, {}, [&](int32_t t) { return trace_.tensors[t].op; });
      return found == made_.end() ? static_cast<int32_t>(trace_.tensors.size())
                                  : *found;
    };
    TensorLives result = {.first = first_made_from(start), .lives = {}};
    const int32_t end = first_made_from(frame.stop);
    for (int32_t t = result.first; t < end; ++t) {
      const TraceTensor& tensor = trace_.tensors[t];
      if (tensor.op >= start && Saves(frame, tensor.op)) {
        result.lives.push_back(tensor.storage);
      } else if (tensor.base >= result.first) {
        result.lives.push_back(result.lives[tensor.base - result.first]);
      } else {
        result.lives.push_back(LifeIn(f, tensor.storage));
      }
    }
    return result;
  }

  int32_t LifeOf(int32_t f, const TensorLives& tensors, int32_t tensor) const {
    const int32_t place = tensor - tensors.first;
    return place >= 0 && place < std::ssize(tensors.lives)
               ? tensors.lives[place]
               : LifeIn(f, trace_.tensors[tensor].storage);
  }

  void HoldByTheProgram(int32_t f, const TensorLives& tensors) {
    const Frame& frame = frames_[f];
    const auto until = [&](int32_t scope_end) {
      return Again(frame, std::min(scope_end, frame.stop));
    };
    const auto& [first_tensor, lives] = tensors;
    // Of some storages a part of the tensors are views of the original.
    std::set<int32_t> split;
    for (size_t k = 0; k < lives.size(); ++k) {
      const TraceTensor& tensor = trace_.tensors[first_tensor + k];
      if (LifeIn(f, tensor.storage) == lives[k]) continue;
      split.insert(tensor.storage);
      Hold(lives[k], until(tensor.scope_end));
    }
    for (size_t k = 0; k < lives.size(); ++k) {
      const TraceTensor& tensor = trace_.tensors[first_tensor + k];
      if (split.contains(tensor.storage)) {
        Hold(lives[k], until(tensor.scope_end));
      }
    }
    for (int32_t op = CallOf(frame).start; op < frame.stop; ++op) {
      for (const int32_t s : trace_.operators[op].creates) {
        const auto remade = remade_.find(s);
        if (remade != remade_.end() && remade->second.contains(f)) {
          Hold(LifeIn(f, s), remade->second.at(f));
        } else if (!split.contains(s)) {
          Hold(LifeIn(f, s), until(trace_.storages[s].scope_end));
        }
      }
    }
    for (const Cast& cast : frame.casts) {
      for (const int32_t s : trace_.operators[cast.op].creates) {
        Hold(LifeIn(f, s), frame.redo_end);
      }
    }
  }

  void HoldByAutograd(int32_t f, const TensorLives& tensors) {
    const Frame& frame = frames_[f];
    for (const int32_t k : frame.saved) {
      const SavedTensor& saved = trace_.saved[k];
      int64_t end = 0;
      if (saved.released <= frame.redone) {
        end = Again(frame, saved.released);
      } else {
        end = std::max(frame.redo_end,
                       Before(saved.unpacked == kNever ? saved.released
                                                       : saved.local_end));
      }
      for (const auto& [op, kept_end] : stuck_) {
        const bool is_argument =
            op == saved.packed &&
            Contains(trace_.operators[op].reads, saved.storage);
        const bool is_result =
            op == saved.packed - 1 &&
            Contains(trace_.operators[op].outputs, saved.storage);
        if (is_argument || is_result) end = std::max(end, kept_end);
      }
      const int32_t copy = LifeIn(f, saved.storage);
      Hold(saved.tensor < 0 ? copy : LifeOf(f, tensors, saved.tensor), end);
      // A saved view is handed out as one of what was made again.
      if (!saved.requires_grad) Hold(copy, end);
    }
  }

  // Operators on the way to an attribute that is made again, and until when it
  // holds what autograd saves for them.
  std::map<int32_t, int64_t> StuckOperators(int32_t f) const {
    std::map<int32_t, int64_t> found;
    const int32_t start = CallOf(frames_[f]).start;
    for (const auto& [storage, ends] : remade_) {
      if (!ends.contains(f)) continue;
      std::vector<int32_t> todo = {trace_.storages[storage].born};
      std::set<int32_t> seen;
      while (!todo.empty()) {
        const int32_t op = todo.back();
        todo.pop_back();
        if (!seen.insert(op).second) continue;
        found[op] = std::max(found[op], ends.at(f));
        for (int32_t before = start; before < op; ++before) {
          for (const int32_t s : trace_.operators[before].outputs) {
            if (Contains(trace_.operators[op].reads, s)) todo.push_back(before);
          }
        }
      }
    }
    return found;
  }

  // What frames inside hold of what this one makes.
  void HoldByFramesInside(int32_t f, const TensorLives& tensors) {
    const Frame& frame = frames_[f];
    for (int32_t g = f + 1; g < frame.end; ++g) {
      Frame& inside = frames_[g];
      const TraceCall& call = CallOf(inside);
      if (call.start > frame.stop) break;
      const bool lets_go = inside.ends <= frame.redone;
      int64_t stuck_end = 0;
      for (auto it = stuck_.lower_bound(call.start);
           it != stuck_.end() && it->first < call.end; ++it) {
        stuck_end = std::max(stuck_end, it->second);
      }
      if (inside.around == f) {
        int64_t end = lets_go ? Again(frame, inside.ends) : frame.redo_end;
        if (!lets_go) {
          end = std::max(
              end, inside.is_laid_out ? inside.redo_end : Before(inside.ends));
        }
        for (size_t k = 0; k < call.arguments.size(); ++k) {
          inside.arguments[k].second = LifeOf(f, tensors, call.arguments[k]);
          Hold(inside.arguments[k].second, end);
        }
      }
      // Frames that this recomputation makes, and that it ends with.
      const int64_t end = std::max(
          stuck_end, lets_go ? Again(frame, inside.ends) : frame.redo_end);
      for (const int32_t s : call.inputs) {
        const bool is_saved_around =
            inside.around != f && IsArgument(inside, s);
        if (!is_saved_around) Hold(LifeIn(f, s), end);
      }
      for (int32_t op = call.start; op < std::min(call.end, frame.stop); ++op) {
        if (!Saves(inside, op)) continue;
        const TraceOperator& saved = trace_.operators[op];
        for (const int32_t t : saved.results) Hold(LifeOf(f, tensors, t), end);
        if (!saved.results.empty()) continue;
        for (const int32_t s : saved.outputs) Hold(LifeIn(f, s), end);
      }
    }
  }

  void AddUp() {
    const int64_t steps = std::ssize(result_.steps);
    std::vector<int64_t> change(steps + 1, 0);
    for (Life& life : lives_) {
      life.begin = std::min(life.begin, steps);
      // A storage is there while the operator runs that creates it.
      life.end = std::clamp(life.end, std::min(life.begin + 1, steps), steps);
      const int64_t bytes = Rounded(trace_.storages[life.storage].bytes);
      change[life.begin] += bytes;
      change[life.end] -= bytes;
    }
    int64_t live = 0;
    result_.live_bytes.reserve(steps);
    for (int64_t k = 0; k < steps; ++k) {
      live += change[k];
      result_.live_bytes.push_back(live);
      if (live > result_.peak_bytes || k == 0) {
        result_.peak_bytes = live;
        result_.peak_step = static_cast<int32_t>(k);
      }
    }
    for (const Life& life : lives_) {
      if (life.begin <= result_.peak_step && result_.peak_step < life.end) {
        const TraceStorage& storage = trace_.storages[life.storage];
        result_.peak_by_category[static_cast<size_t>(storage.category)] +=
            Rounded(storage.bytes);
      }
    }
  }

  const Trace& trace_;
  int32_t count_;
  std::vector<int32_t> made_;  // tensors that are results of operators
  std::vector<Frame> frames_;
  std::vector<int32_t> frame_of_;        // a call: the innermost frame, or -1
  std::vector<int64_t> before_, after_;  // a time: before, after what is redone
  std::vector<Life> lives_;
  // A storage: a frame, or -1 for the original: when its copy is replaced.
  std::map<int32_t, std::map<int32_t, int64_t>> remade_;
  // Of the frame at hand: operators on the way to an attribute made again, and
  // until when it holds what autograd saves for them.
  std::map<int32_t, int64_t> stuck_;
  Simulation result_;
};

}  // namespace

Simulation Simulate(const Trace& trace,
                    const std::vector<CheckpointedModule>& modules) {
  return Simulator(trace, modules).Run();
}

}  // namespace acplan::graph
