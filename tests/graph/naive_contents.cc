#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/graph/naive_frames.h"
#include "tests/graph/naive_simulation.h"

namespace acplan::graph {
namespace {

bool Has(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

// The contents of storages that are born in a call, by name.
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
        case OperatorDecision::kOffload:
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

  // Runs an operator. A content is the last operator that wrote it.
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

  // Returns the content at the stop: the recomputation does not reach later
  // writes.
  int32_t AtStop(int32_t storage,
                 const std::map<int32_t, int32_t>& at_the_end) const {
    int32_t content = at_the_end.at(storage);
    if (content < frame_.stop) return content;
    for (int32_t op = call_.start; op < frame_.stop; ++op) {
      const TraceOperator& now = trace_.operators[op];
      if (Has(now.creates, storage) || Has(now.mutates, storage)) {
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

bool ComputesTheSame(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules) {
  const std::vector<NaiveFrame> frames = FramesOf(trace, modules);
  return std::ranges::all_of(frames, [&](const NaiveFrame& frame) {
    return frame.asked_at == kNever || Contents(trace, frame).AreTheSame();
  });
}

}  // namespace acplan::graph
