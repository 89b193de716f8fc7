#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/graph/naive_frames.h"
#include "tests/graph/naive_simulation.h"

namespace acplan::graph {
namespace {

bool Has(const std::vector<StorageId>& values, StorageId value) {
  return std::ranges::find(values, value) != values.end();
}

// The content of each storage: the last operator that wrote it.
using ContentMap = std::map<StorageId, OperatorId>;

// Contents of storages that are born in a call, by name.
class Contents {
 public:
  Contents(const Trace& trace, const NaiveFrame& frame)
      : trace_(trace), frame_(frame), call_(trace.calls[frame.call]) {}

  bool AreTheSame() {
    for (const OperatorId op : call_.Operators()) Run(op, op);
    const ContentMap at_the_end = now_;
    std::map<OperatorId, ContentMap> read;
    now_.clear();
    for (const OperatorId op : call_.Operators()) {
      read[op] = Read(op);
      Run(op, op);
    }
    now_.clear();
    std::set<TensorId> kept_tensors;
    for (const OperatorId op : OperatorsIn(call_.start, frame_.stop)) {
      const TraceOperator& operation = trace_.operators[op];
      switch (DecisionOf(trace_, frame_, op)) {
        case OperatorDecision::kRecompute:
          if (operation.view) break;
          if (Read(op) != read[op]) return false;
          Run(op, op);
          break;
        case OperatorDecision::kSave:
        case OperatorDecision::kOffload:
          for (const StorageId s : operation.creates) {
            now_[s] = KeptStorages(trace_, frame_, op).contains(s)
                          ? at_the_end.at(s)
                          : kMissing;
          }
          for (const TensorId t : operation.results) {
            if (IsTensorKept(trace_, frame_, t)) kept_tensors.insert(t);
          }
          break;
        case OperatorDecision::kSkip:
          for (const StorageId s : operation.creates) now_[s] = kMissing;
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
  static constexpr OperatorId kMissing = kNone;

  bool IsOfCall(StorageId s) const {
    const Time born = StartOf(trace_.storages[s].born);
    return call_.start <= born && born < call_.end;
  }

  // Runs an operator. A content is the last operator that wrote it.
  void Run(OperatorId op, OperatorId content) {
    for (const StorageId s : trace_.operators[op].creates) now_[s] = content;
    for (const StorageId s : trace_.operators[op].mutates) {
      if (IsOfCall(s)) now_[s] = content;
    }
  }

  ContentMap Read(OperatorId op) const {
    ContentMap read;
    for (const StorageId s : trace_.operators[op].reads) {
      if (IsOfCall(s)) read[s] = now_.at(s);
    }
    return read;
  }

  // Returns the content at the stop: the recomputation does not reach later
  // writes.
  OperatorId AtStop(StorageId storage, const ContentMap& at_the_end) const {
    OperatorId content = at_the_end.at(storage);
    if (StartOf(content) < frame_.stop) return content;
    for (const OperatorId op : OperatorsIn(call_.start, frame_.stop)) {
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
  ContentMap now_;
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
