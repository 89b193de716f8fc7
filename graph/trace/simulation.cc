#include "graph/trace/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"

namespace acplan::graph {

namespace {

// A backward node may hand on what it asked for.
int32_t HeldUntil(const SavedTensor& saved) {
  return saved.unpacked == kNever ? saved.released
                                  : std::max(saved.released, saved.local_end);
}

}  // namespace

struct PreparedTrace {
  explicit PreparedTrace(const Trace& of);

  // The first operator of [begin, end) that writes to a storage in place, or
  // kNever.
  int32_t FirstWrite(int32_t storage, int32_t begin, int32_t end) const {
    const auto found =
        std::ranges::lower_bound(writes, std::pair(storage, begin));
    const bool is_found =
        found != writes.end() && found->first == storage && found->second < end;
    return is_found ? found->second : kNever;
  }

  const Trace* trace;
  std::vector<double> runtime_ms;  // an operator
  // What operators create, one after the other, and where that of each starts.
  std::vector<int32_t> created, first_created;
  std::vector<std::pair<int32_t, int32_t>> recasts;  // operator, cast
  std::vector<std::pair<int32_t, int32_t>> writes;   // storage, operator
  std::vector<char> is_written;                      // a storage: in place
  std::vector<int32_t> made;  // tensors that are results of operators
  // A storage: until when others than autograd hold it.
  std::vector<int32_t> held;
};

PreparedTrace::PreparedTrace(const Trace& of)
    : trace(&of), is_written(of.storages.size(), 0) {
  // Nothing runs again after it.
  int32_t last_request = 0;
  for (const SavedTensor& saved : of.saved) {
    if (saved.unpacked == kNever) continue;
    last_request = std::max(last_request, saved.unpacked);
  }
  runtime_ms.reserve(of.operators.size());
  first_created.reserve(of.operators.size() + 1);
  created.reserve(of.storages.size());
  for (int32_t k = 0; k < std::ssize(of.operators); ++k) {
    const TraceOperator& op = of.operators[k];
    runtime_ms.push_back(op.runtime_ms);
    first_created.push_back(static_cast<int32_t>(created.size()));
    created.insert(created.end(), op.creates.begin(), op.creates.end());
    for (const int32_t cast : op.recasts) recasts.emplace_back(k, cast);
    if (k >= last_request) continue;
    for (const int32_t s : op.mutates) {
      writes.emplace_back(s, k);
      is_written[s] = 1;
    }
  }
  first_created.push_back(static_cast<int32_t>(created.size()));
  std::ranges::sort(writes);
  for (int32_t t = 0; t < std::ssize(of.tensors); ++t) {
    if (of.tensors[t].op >= 0) made.push_back(t);
  }
  held = HeldByOthers(of);
}

namespace {

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

struct Cast {
  int32_t op;
  int32_t before;   // the operator that needs it
  int32_t at = -1;  // its step
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
  bool is_laid_out = false;
  int32_t redo_end = 0;  // the step after the last that runs again
  size_t again = 0;      // where its operators start in again_
  // By argument that is a tensor given by position: its storage, and the life
  // that it is part of when the call runs again.
  std::vector<std::pair<int32_t, int32_t>> arguments = {};
};

// Where a storage is in use: steps [begin, end).
struct Life {
  int32_t storage;
  int32_t begin, end;
};

class PlannedStep {
 public:
  PlannedStep(const PreparedTrace& prepared,
              const std::vector<CheckpointedModule>& modules)
      : prepared_(prepared),
        trace_(*prepared.trace),
        count_(static_cast<int32_t>(trace_.operators.size())) {
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
    for (auto recast = std::ranges::lower_bound(prepared_.recasts,
                                                std::pair(call.start, 0));
         recast != prepared_.recasts.end() && recast->first < end; ++recast) {
      const auto& [op, cast] = *recast;
      const bool is_made =
          cast >= call.start ||
          std::ranges::find(frame.casts, cast, &Cast::op) != frame.casts.end();
      if (!is_made) frame.casts.push_back({cast, op});
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
    int32_t writer = kNever;
    for (const auto& [storage, life] : frame.arguments) {
      if (frame.around >= 0) break;
      writer = std::min(
          writer, prepared_.FirstWrite(storage, call.start, frame.redone));
    }
    if (writer != kNever) {
      Refuse(frame, fmt::format("cannot be a unit: operator {} ({}) of the "
                                "step writes to an argument of it in "
                                "place, which PyTorch refuses",
                                writer, Name(writer)));
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
    // Of what is written to at all.
    std::map<int32_t, int32_t> saved_by;  // a storage: the operator
    std::map<int32_t, int32_t> read_by;   // one that runs again, since then
    const auto check_writes = [&](int32_t op, bool is_saved) {
      for (const int32_t s : trace_.operators[op].mutates) {
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
    };
    for (int32_t op = start; op < std::min(last, frame.redone); ++op) {
      const TraceOperator& now = trace_.operators[op];
      const bool is_saved = Saves(frame, op);
      check_writes(op, is_saved);
      for (const int32_t s : now.reads) {
        if (!is_saved && !now.view && saved_by.contains(s)) read_by[s] = op;
      }
      if (!is_saved) continue;
      for (const int32_t s : now.outputs) {
        if (!prepared_.is_written[s]) continue;
        saved_by[s] = op;
        if (!now.view) read_by.erase(s);
      }
    }
    // What does not run again may write as well.
    for (int32_t from = last; from < frame.redone;) {
      int32_t next = kNever;
      for (const auto& [storage, by] : saved_by) {
        next =
            std::min(next, prepared_.FirstWrite(storage, from, frame.redone));
      }
      if (next == kNever) break;
      check_writes(next, next < CallOf(frame).end && Saves(frame, next));
      from = next + 1;
    }
  }

  // The steps, and for every time the place among them.
  void LayOutSteps() {
    // Backward meets the last call first.
    std::vector<std::pair<int32_t, int32_t>> redone;
    size_t steps = count_;
    for (int32_t f = 0; f < std::ssize(frames_); ++f) {
      const Frame& frame = frames_[f];
      if (frame.redone > count_) continue;
      redone.emplace_back(frame.redone, -f);
      steps += frame.stop - CallOf(frame).start + frame.casts.size();
    }
    std::ranges::sort(redone);
    result_.steps.reserve(steps);
    before_.reserve(count_ + 1);
    after_.reserve(count_ + 1);
    auto next = redone.begin();
    for (int32_t t = 0; t <= count_; ++t) {
      before_.push_back(StepCount());
      for (; next != redone.end() && next->first == t; ++next) {
        LayOutAgain(frames_[-next->second]);
      }
      after_.push_back(StepCount());
      if (t < count_) result_.steps.push_back({.op = t});
    }
  }

  int32_t StepCount() const {
    return static_cast<int32_t>(result_.steps.size());
  }

  void LayOutAgain(Frame& frame) {
    if (frame.is_laid_out) return;
    if (IsSavedAround(frame)) LayOutAgain(frames_[frame.around]);
    frame.is_laid_out = true;
    frame.again = again_.size();
    auto cast = frame.casts.begin();
    const auto run_casts_before = [&](int32_t op) {
      for (; cast != frame.casts.end() && cast->before == op; ++cast) {
        cast->at = StepCount();
        RunAgain(frame, cast->op);
      }
    };
    for (int32_t op = CallOf(frame).start; op < frame.stop; ++op) {
      again_.push_back(StepCount());
      run_casts_before(op);
      if (!Saves(frame, op)) RunAgain(frame, op);
    }
    again_.push_back(StepCount());
    run_casts_before(frame.stop);
    frame.redo_end = StepCount();
  }

  void RunAgain(const Frame& frame, int32_t op) {
    result_.steps.push_back({.op = op, .redone = frame.call});
    result_.recompute_ms += prepared_.runtime_ms[op];
  }

  // The step before which what happens at a time has happened: nodes of the
  // backward pass let go of what they used before the next one asks.
  int32_t Before(int32_t time) const {
    return time > count_ ? StepCount() : before_[time];
  }

  // The same for a time of the forward pass when the frame runs again.
  int32_t Again(const Frame& frame, int32_t time) const {
    if (time >= frame.stop) return frame.redo_end;
    return again_[frame.again + std::max(time - CallOf(frame).start, 0)];
  }

  // The step at which an operator runs again that is not saved.
  int32_t RunsAgainAt(const Frame& frame, int32_t op) const {
    return again_[frame.again + (op + 1 - CallOf(frame).start)] - 1;
  }

  void Hold(int32_t life, int32_t end) {
    lives_[life].end = std::max(lives_[life].end, end);
  }

  // Lives are first of all those of the storages as they were, in their order.
  void FindLives() {
    FindRemadeAttributes();
    const auto n = static_cast<int32_t>(trace_.storages.size());
    lives_.reserve(n + result_.steps.size() - count_);
    for (int32_t s = 0; s < n; ++s) {
      const int32_t born = trace_.storages[s].born;
      const auto remade = remade_.find(s);
      const int32_t end = remade == remade_.end() ? Before(prepared_.held[s])
                                                  : remade->second.at(-1);
      lives_.push_back({s, born < 0 ? 0 : after_[born], end});
    }
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.call < 0 || frame_of_[saved.call] < 0) {
        Hold(saved.storage, Before(HeldUntil(saved)));
      }
    }
    for (const Frame& frame : frames_) {
      for (const int32_t s : CallOf(frame).inputs) {
        if (frame.around < 0 || !IsArgument(frame, s)) {
          Hold(s, Before(frame.ends));
        }
      }
    }
    life_in_.resize(n);
    std::iota(life_in_.begin(), life_in_.end(), 0);
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
        std::map<int32_t, int32_t>& ends = remade_[kept.storage];
        ends[last] = Again(frame, kept.since);
        ends[f] = StepCount();
        last = f;
      }
    }
  }

  // What a call keeps, and creates anew.
  void AddFrame(int32_t f) {
    const Frame& frame = frames_[f];
    const TraceCall& call = CallOf(frame);
    if (!frame.unit->save.empty()) {
      for (int32_t op = call.start; op < call.end; ++op) {
        if (!Saves(frame, op)) continue;
        const bool is_reached = frame.is_laid_out && op < frame.stop;
        const int32_t end =
            is_reached ? Again(frame, op + 1) : Before(frame.ends);
        for (const int32_t s : trace_.operators[op].outputs) Hold(s, end);
      }
    }
    if (!frame.is_laid_out) return;
    const auto first_copy = static_cast<int32_t>(lives_.size());
    AddCopies(frame);
    const TensorLives tensors = LivesOfTensors(f);
    stuck_ = StuckOperators(f);
    HoldByTheProgram(f, tensors);
    HoldByAutograd(f, tensors);
    HoldByFramesInside(f, tensors);
    for (const auto& [storage, life] : frame.arguments) {
      life_in_[storage] = storage;
    }
    for (auto life = first_copy; life < std::ssize(lives_); ++life) {
      life_in_[lives_[life].storage] = lives_[life].storage;
    }
  }

  std::span<const int32_t> CreatedBy(int32_t op) const {
    return {prepared_.created.begin() + prepared_.first_created[op],
            prepared_.created.begin() + prepared_.first_created[op + 1]};
  }

  void AddCopies(const Frame& frame) {
    for (size_t k = frame.arguments.size(); k-- > 0;) {
      life_in_[frame.arguments[k].first] = frame.arguments[k].second;
    }
    const auto add = [&](int32_t op, int32_t at) {
      for (const int32_t s : CreatedBy(op)) {
        life_in_[s] = static_cast<int32_t>(lives_.size());
        lives_.push_back({s, at, at});
      }
    };
    for (int32_t op = CallOf(frame).start; op < frame.stop; ++op) {
      if (!Saves(frame, op)) add(op, RunsAgainAt(frame, op));
    }
    for (const Cast& cast : frame.casts) add(cast.op, cast.at);
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
          prepared_.made, op, {},
          [&](int32_t t) { return trace_.tensors[t].op; });
      return found == prepared_.made.end()
                 ? static_cast<int32_t>(trace_.tensors.size())
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
        result.lives.push_back(life_in_[tensor.storage]);
      }
    }
    return result;
  }

  int32_t LifeOf(const TensorLives& tensors, int32_t tensor) const {
    const int32_t place = tensor - tensors.first;
    return place >= 0 && place < std::ssize(tensors.lives)
               ? tensors.lives[place]
               : life_in_[trace_.tensors[tensor].storage];
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
      if (life_in_[tensor.storage] == lives[k]) continue;
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
      for (const int32_t s : CreatedBy(op)) {
        // Of what is saved only the results are there again.
        if (Saves(frame, op) && !Contains(trace_.operators[op].outputs, s)) {
          continue;
        }
        const auto remade = remade_.find(s);
        if (remade != remade_.end() && remade->second.contains(f)) {
          Hold(life_in_[s], remade->second.at(f));
        } else if (!split.contains(s)) {
          Hold(life_in_[s], until(trace_.storages[s].scope_end));
        }
      }
    }
    for (const Cast& cast : frame.casts) {
      for (const int32_t s : CreatedBy(cast.op)) {
        Hold(life_in_[s], frame.redo_end);
      }
    }
  }

  void HoldByAutograd(int32_t f, const TensorLives& tensors) {
    const Frame& frame = frames_[f];
    for (const int32_t k : frame.saved) {
      const SavedTensor& saved = trace_.saved[k];
      int32_t end = 0;
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
      const int32_t copy = life_in_[saved.storage];
      Hold(saved.tensor < 0 ? copy : LifeOf(tensors, saved.tensor), end);
      // A saved view is handed out as one of what was made again.
      if (!saved.requires_grad) Hold(copy, end);
    }
  }

  // Operators on the way to an attribute that is made again, and until when it
  // holds what autograd saves for them.
  std::map<int32_t, int32_t> StuckOperators(int32_t f) const {
    std::map<int32_t, int32_t> found;
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
      int32_t stuck_end = 0;
      for (auto it = stuck_.lower_bound(call.start);
           it != stuck_.end() && it->first < call.end; ++it) {
        stuck_end = std::max(stuck_end, it->second);
      }
      if (inside.around == f) {
        int32_t end = lets_go ? Again(frame, inside.ends) : frame.redo_end;
        if (!lets_go) {
          end = std::max(
              end, inside.is_laid_out ? inside.redo_end : Before(inside.ends));
        }
        for (size_t k = 0; k < call.arguments.size(); ++k) {
          inside.arguments[k].second = LifeOf(tensors, call.arguments[k]);
          Hold(inside.arguments[k].second, end);
        }
      }
      // Frames that this recomputation makes, and that it ends with.
      const int32_t end = std::max(
          stuck_end, lets_go ? Again(frame, inside.ends) : frame.redo_end);
      for (const int32_t s : call.inputs) {
        const bool is_saved_around =
            inside.around != f && IsArgument(inside, s);
        if (!is_saved_around) Hold(life_in_[s], end);
      }
      for (int32_t op = call.start; op < std::min(call.end, frame.stop); ++op) {
        if (!Saves(inside, op)) continue;
        const TraceOperator& saved = trace_.operators[op];
        for (const int32_t t : saved.results) Hold(LifeOf(tensors, t), end);
        if (!saved.results.empty()) continue;
        for (const int32_t s : saved.outputs) Hold(life_in_[s], end);
      }
    }
  }

  void AddUp() {
    const int32_t steps = StepCount();
    std::vector<int64_t> change(steps + 1, 0);
    for (Life& life : lives_) {
      life.begin = std::min(life.begin, steps);
      // A storage is there while the operator runs that creates it.
      life.end = std::clamp(life.end, std::min(life.begin + 1, steps), steps);
      const int64_t bytes = AllocatedBytes(trace_.storages[life.storage].bytes);
      change[life.begin] += bytes;
      change[life.end] -= bytes;
    }
    int64_t live = 0;
    result_.live_bytes.reserve(steps);
    for (int32_t k = 0; k < steps; ++k) {
      live += change[k];
      result_.live_bytes.push_back(live);
      if (live > result_.peak_bytes || k == 0) {
        result_.peak_bytes = live;
        result_.peak_step = k;
      }
    }
    for (const Life& life : lives_) {
      if (life.begin <= result_.peak_step && result_.peak_step < life.end) {
        const TraceStorage& storage = trace_.storages[life.storage];
        result_.peak_by_category[static_cast<size_t>(storage.category)] +=
            AllocatedBytes(storage.bytes);
      }
    }
  }

  const PreparedTrace& prepared_;
  const Trace& trace_;
  int32_t count_;
  std::vector<Frame> frames_;
  std::vector<int32_t> frame_of_;        // a call: the innermost frame, or -1
  std::vector<int32_t> before_, after_;  // a time: before, after what is redone
  // By frame that runs again and operator, up to where it stops: the step before
  // which what comes before the operator has happened.
  std::vector<int32_t> again_;
  std::vector<Life> lives_;
  // A storage: its life, to the frame at hand.
  std::vector<int32_t> life_in_;
  // A storage: a frame, or -1 for the original: when its copy is replaced.
  std::map<int32_t, std::map<int32_t, int32_t>> remade_;
  // Of the frame at hand: operators on the way to an attribute made again, and
  // until when it holds what autograd saves for them.
  std::map<int32_t, int32_t> stuck_;
  Simulation result_;
};

}  // namespace

std::vector<int32_t> HeldByOthers(const Trace& trace) {
  // Until when the trace knows a holder.
  std::vector<int32_t> explained(trace.storages.size(), 0);
  for (const SavedTensor& saved : trace.saved) {
    explained[saved.storage] =
        std::max(explained[saved.storage], HeldUntil(saved));
  }
  std::vector<int32_t> held;
  held.reserve(trace.storages.size());
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    const TraceStorage& storage = trace.storages[s];
    const bool of_forward =
        storage.born >= 0 && storage.born < trace.forward_end;
    const bool by_something_unseen =
        std::max(storage.scope_end, explained[s]) < storage.freed;
    held.push_back(of_forward && !by_something_unseen
                       ? std::min(storage.scope_end, storage.freed)
                       : storage.freed);
  }
  return held;
}

Simulation Simulate(const Trace& trace,
                    const std::vector<CheckpointedModule>& modules) {
  return Simulator(trace).Simulate(modules);
}

Simulator::Simulator(const Trace& trace)
    : prepared_(std::make_shared<const PreparedTrace>(trace)) {}

Simulation Simulator::Simulate(
    const std::vector<CheckpointedModule>& modules) const {
  return PlannedStep(*prepared_, modules).Run();
}

}  // namespace acplan::graph
