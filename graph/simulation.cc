#include "graph/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "graph/input_error.h"

namespace acplan::graph {

namespace {

constexpr int64_t kAllocationUnit = 512;

int64_t Rounded(int64_t bytes) {
  return (bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
}

// A call of a unit.
struct Frame {
  int32_t call = 0;
  const CheckpointedModule* unit = nullptr;
  std::vector<int32_t> saved;  // in Trace::saved
  int32_t ends = 0;            // when autograd lets go of the last of them
  int32_t redone = kNever;     // when its operators run again, if they do
  int32_t stop = 0;            // the operator before which they stop
  // Positions among the steps: of the first operator that runs again, and after
  // the last.
  int64_t redo_begin = 0;
  int64_t redo_end = 0;
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
    MakeFrames(modules);
  }

  Simulation Run() {
    LayOutSteps();
    FindLives();
    AddUp();
    return std::move(result_);
  }

 private:
  bool Saves(const Frame& frame, int32_t op) const {
    const std::vector<char>& save = frame.unit->save;
    return !save.empty() && save[op - trace_.calls[frame.call].start] != 0;
  }

  [[noreturn]] void Refuse(int32_t call, const std::string& why) const {
    throw InputError(fmt::format(
        "module '{}': {}", trace_.modules[trace_.calls[call].module].fqn, why));
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
      if (around >= 0) {
        Refuse(c,
               fmt::format("expected no unit inside another, found it in '{}'",
                           trace_.modules[frames_[around].unit->module].fqn));
      }
      const auto length = static_cast<size_t>(call.end - call.start);
      if (!unit->save.empty() && unit->save.size() != length) {
        Refuse(c, fmt::format("expected a decision for each of the {} "
                              "operators of a call, found {}",
                              length, unit->save.size()));
      }
      frame_of_[c] = static_cast<int32_t>(frames_.size());
      frames_.push_back({.call = c, .unit = unit, .saved = {}});
    }
    for (const CheckpointedModule& unit : modules) {
      if (!is_called[unit.module]) {
        throw InputError(
            fmt::format("module '{}': expected one that is called, found none",
                        trace_.modules[unit.module].fqn));
      }
    }
    for (int32_t s = 0; s < std::ssize(trace_.saved); ++s) {
      const SavedTensor& saved = trace_.saved[s];
      const int32_t f = saved.call < 0 ? -1 : frame_of_[saved.call];
      if (f < 0) continue;
      Frame& frame = frames_[f];
      frame.saved.push_back(s);
      frame.ends = std::max(frame.ends, saved.released);
      frame.redone = std::min(frame.redone, saved.unpacked);
      frame.stop = saved.packed;
    }
    for (const Frame& frame : frames_) RefuseMutatedCaches(frame);
  }

  void RefuseMutatedCaches(const Frame& frame) const {
    if (frame.unit->save.empty() || frame.redone == kNever) return;
    const TraceCall& call = trace_.calls[frame.call];
    std::map<int32_t, int32_t> saved_by;  // a storage: the operator
    for (int32_t op = call.start; op < frame.redone && op < count_; ++op) {
      for (const int32_t s : trace_.operators[op].mutates) {
        const auto found = saved_by.find(s);
        if (found == saved_by.end()) continue;
        Refuse(frame.call,
               fmt::format(
                   "operator {} ({}) cannot be saved: operator {} ({}) later "
                   "writes to its result in place, which PyTorch refuses",
                   found->second - call.start, Name(found->second),
                   op - call.start, Name(op)));
      }
      if (op >= call.end || op >= frame.stop || !Saves(frame, op)) continue;
      for (const int32_t s : trace_.operators[op].outputs) saved_by[s] = op;
    }
  }

  const std::string& Name(int32_t op) const {
    return trace_.operator_names[trace_.operators[op].name];
  }

  // The steps, and for every time the place among them.
  void LayOutSteps() {
    std::vector<std::vector<int32_t>> redone_at(count_ + 1);
    for (int32_t f = 0; f < std::ssize(frames_); ++f) {
      if (frames_[f].redone <= count_)
        redone_at[frames_[f].redone].push_back(f);
    }
    std::vector<Simulation::Step>& steps = result_.steps;
    before_.resize(count_ + 1);
    after_.resize(count_ + 1);
    for (int32_t t = 0; t <= count_; ++t) {
      before_[t] = std::ssize(steps);
      // Backward meets the last call first.
      for (size_t k = redone_at[t].size(); k-- > 0;) {
        Frame& frame = frames_[redone_at[t][k]];
        frame.redo_begin = std::ssize(steps);
        for (int32_t op = trace_.calls[frame.call].start; op < frame.stop;
             ++op) {
          if (Saves(frame, op)) continue;
          steps.push_back({.op = op, .redone = frame.call});
          result_.recompute_ms += trace_.operators[op].runtime_ms;
        }
        frame.redo_end = std::ssize(steps);
      }
      after_[t] = std::ssize(steps);
      if (t < count_) steps.push_back({.op = t});
    }
  }

  // The step before which what happens at a time has happened: nodes of the
  // backward pass let go of what they used before the next one asks.
  int64_t Before(int32_t time) const {
    return time > count_ ? std::ssize(result_.steps) : before_[time];
  }

  void FindLives() {
    const auto n = static_cast<int32_t>(trace_.storages.size());
    // What the trace knows to hold a storage, and with the units, as steps.
    std::vector<int32_t> explained(n, 0);
    ends_.assign(n, 0);
    const auto hold = [&](int32_t s, int64_t end) {
      ends_[s] = std::max(ends_[s], end);
    };
    for (const SavedTensor& saved : trace_.saved) {
      // A backward node may hand on what it asked for.
      const int32_t end = saved.unpacked == kNever
                              ? saved.released
                              : std::max(saved.released, saved.local_end);
      explained[saved.storage] = std::max(explained[saved.storage], end);
      if (saved.call < 0 || frame_of_[saved.call] < 0) {
        hold(saved.storage, Before(end));
      }
    }
    for (const Frame& frame : frames_) {
      if (frame.saved.empty()) continue;
      for (const int32_t s : trace_.calls[frame.call].inputs) {
        hold(s, Before(frame.ends));
      }
    }
    for (int32_t s = 0; s < n; ++s) {
      const TraceStorage& storage = trace_.storages[s];
      const bool of_forward =
          storage.born >= 0 && storage.born < trace_.forward_end;
      if (!of_forward) {
        hold(s, Before(storage.freed));
        continue;
      }
      hold(s, Before(std::min(storage.scope_end, storage.freed)));
      // Something unseen holds on.
      if (std::max(storage.scope_end, explained[s]) < storage.freed) {
        hold(s, Before(storage.freed));
      }
    }
    for (const Frame& frame : frames_) AddFrame(frame);
    for (int32_t s = 0; s < n; ++s) {
      const int32_t born = trace_.storages[s].born;
      lives_.push_back({s, born < 0 ? 0 : after_[born], ends_[s]});
    }
  }

  // What a call keeps, and creates anew.
  void AddFrame(const Frame& frame) {
    const TraceCall& call = trace_.calls[frame.call];
    const bool runs_again = frame.redone != kNever;
    // Positions of its operators when they run again.
    std::vector<int64_t> again;
    int64_t next = frame.redo_begin;
    for (int32_t op = call.start; op < frame.stop; ++op) {
      again.push_back(next);
      if (!Saves(frame, op)) ++next;
    }
    const auto at = [&](int32_t time) {
      return time < frame.stop ? again[time - call.start] : frame.redo_end;
    };
    std::map<int32_t, int64_t> held;  // by what was saved
    if (runs_again) {
      for (const int32_t k : frame.saved) {
        const SavedTensor& saved = trace_.saved[k];
        const int32_t until =
            saved.unpacked == kNever ? saved.released : saved.local_end;
        int64_t& end = held[saved.storage];
        end = std::max({end, frame.redo_end, Before(until)});
      }
    }
    for (int32_t op = call.start; op < call.end; ++op) {
      const bool is_saved = Saves(frame, op);
      const bool is_reached = runs_again && op < frame.stop;
      if (is_saved && !frame.saved.empty()) {
        for (const int32_t s : trace_.operators[op].outputs) {
          ends_[s] =
              std::max(ends_[s], is_reached ? at(op) : Before(frame.ends));
        }
      }
      if (!is_reached) continue;
      for (const int32_t s : trace_.operators[op].creates) {
        const auto found = held.find(s);
        const int64_t end =
            std::max(at(std::min(trace_.storages[s].scope_end, frame.stop)),
                     found == held.end() ? 0 : found->second);
        if (is_saved) {
          ends_[s] = std::max(ends_[s], end);
        } else {
          lives_.push_back({s, at(op), end});
        }
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
  std::vector<Frame> frames_;
  std::vector<int32_t> frame_of_;        // a call: the frame around it, or -1
  std::vector<int64_t> before_, after_;  // a time: before, after what is redone
  std::vector<int64_t> ends_;            // a storage: the end of its first life
  std::vector<Life> lives_;
  Simulation result_;
};

}  // namespace

Simulation Simulate(const Trace& trace,
                    const std::vector<CheckpointedModule>& modules) {
  return Simulator(trace, modules).Run();
}

}  // namespace acplan::graph
