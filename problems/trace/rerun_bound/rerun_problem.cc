#include "problems/trace/rerun_bound/rerun_problem.h"

#include <algorithm>
#include <cstddef>

#include "graph/trace/allocation.h"
#include "graph/trace/gathers.h"

namespace acplan::problems {

using graph::kNever;
using graph::OperatorId;
using graph::SavedTensor;
using graph::StorageId;
using graph::Time;
using graph::Trace;
using graph::TraceOperator;
using graph::TraceStorage;

namespace {

using Value = RerunProblem::Value;
using Interval = std::pair<Time, Time>;

bool Contains(const std::vector<StorageId>& values, StorageId value) {
  return std::ranges::find(values, value) != values.end();
}

// Intervals that are apart, ascending, with the same points.
std::vector<Interval> Joined(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> joined;
  for (const auto& [begin, end] : intervals) {
    if (begin >= end) continue;
    if (!joined.empty() && begin <= joined.back().second) {
      joined.back().second = std::max(joined.back().second, end);
    } else {
      joined.emplace_back(begin, end);
    }
  }
  return joined;
}

class ScheduleBuilder {
 public:
  ScheduleBuilder(
      const Trace& trace,
      const graph::IndexedVector<OperatorId, int64_t>& bytes_of_rank)
      : trace_(trace),
        end_(static_cast<Time>(trace.operators.size())),
        values_(trace.storages.size()) {
    problem_.held_bytes = bytes_of_rank;
  }

  RerunProblem Build() && {
    for (const OperatorId op : graph::OperatorsIn(0, trace_.forward_end)) {
      problem_.runtime_ms.push_back(trace_.operators[op].runtime_ms);
    }
    FindHeld();
    FindUsers();
    for (const StorageId s : values_.ids()) {
      Value& value = values_[s];
      const bool is_used = value.last_request > 0 || !value.readers.empty();
      if (is_used && MayBeAbsent(s))
        problem_.values.push_back(std::move(value));
    }
    std::ranges::sort(problem_.values, {}, [](const Value& value) {
      return std::pair(value.writers.back(), value.storage);
    });
    return std::move(problem_);
  }

 private:
  bool IsOfForward(const TraceStorage& storage) const {
    return storage.born != graph::kNone &&
           storage.IsOlderThan(trace_.forward_end);
  }

  bool MayBeAbsent(StorageId s) const {
    const std::vector<Interval>& intervals = values_[s].held_during;
    return IsOfForward(trace_.storages[s]) &&
           (intervals.size() > 1 || intervals.front().second < end_);
  }

  void FindHeld() {
    const auto held_until = graph::HeldUnderEveryPlan(trace_);
    for (const StorageId s : values_.ids()) {
      const TraceStorage& storage = trace_.storages[s];
      values_[s].storage = s;
      values_[s].bytes = graph::AllocatedBytes(storage.bytes);
      const Time begin = std::max(StartOf(storage.born), 0);
      // It is there while the operator runs that creates it.
      const Time end = std::max(held_until[s], EndOf(storage.born));
      values_[s].held_during.emplace_back(begin, std::min(end, end_));
    }
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.unpacked == kNever) continue;
      Value& value = values_[saved.storage];
      value.last_request = std::max(value.last_request, saved.unpacked);
      // The node that asks holds it, unless autograd lets go of it at once.
      if (saved.released <= saved.unpacked) continue;
      value.held_during.emplace_back(saved.unpacked,
                                     std::min(saved.local_end, end_));
    }
    std::vector<int64_t> change(trace_.operators.size() + 1, 0);
    for (Value& value : values_) {
      value.held_during = Joined(std::move(value.held_during));
      for (const auto& [begin, end] : value.held_during) {
        change[begin] += value.bytes;
        change[end] -= value.bytes;
      }
    }
    int64_t held_bytes = 0;
    for (const OperatorId k : trace_.operators.ids()) {
      held_bytes += change[StartOf(k)];
      problem_.held_bytes[k] += held_bytes;
    }
  }

  // Finds the readers of each storage, and its writers before them.
  void FindUsers() {
    graph::IndexedVector<StorageId, Time> first_use(values_.size(), kNever);
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.unpacked == kNever) continue;
      Time& first = first_use[saved.storage];
      first = std::min(first, saved.packed);
    }
    for (const OperatorId op : graph::OperatorsIn(0, trace_.forward_end)) {
      const TraceOperator& now = trace_.operators[op];
      if (now.view) continue;
      for (const StorageId s : now.reads) {
        if (!Needs(op, s)) continue;
        values_[s].readers.push_back(op);
        first_use[s] = std::min(first_use[s], StartOf(op));
      }
    }
    for (const OperatorId op : graph::OperatorsIn(0, trace_.forward_end)) {
      const TraceOperator& now = trace_.operators[op];
      for (const StorageId s : now.creates) values_[s].writers.push_back(op);
      for (const StorageId s : now.mutates) {
        const bool is_before_use = IsOfForward(trace_.storages[s]) &&
                                   StartOf(op) < first_use[s] &&
                                   !Contains(now.creates, s);
        if (is_before_use) values_[s].writers.push_back(op);
      }
    }
  }

  // Returns whether an operator that runs again needs a storage to be live or made
  // again.
  bool Needs(OperatorId op, StorageId s) const {
    const TraceOperator& now = trace_.operators[op];
    const TraceStorage& storage = trace_.storages[s];
    const bool is_writer = Contains(now.mutates, s) || storage.born >= op;
    if (!IsOfForward(storage) || is_writer) return false;
    for (graph::CallId c = now.call; c != graph::kNone;
         c = trace_.calls[c].parent) {
      const graph::TraceCall& call = trace_.calls[c];
      if (!storage.IsOlderThan(call.start)) break;
      if (!Contains(call.inputs, s)) return false;
    }
    return true;
  }

  const Trace& trace_;
  const Time end_;
  graph::IndexedVector<StorageId, Value> values_;
  RerunProblem problem_;
};

}  // namespace

bool RerunProblem::Value::IsHeldAt(OperatorId op) const {
  const Time time = StartOf(op);
  return std::ranges::any_of(held_during, [time](const Interval& interval) {
    return interval.first <= time && time < interval.second;
  });
}

graph::IndexedVector<OperatorId, int64_t> RerunProblem::BytesWithoutReruns()
    const {
  const auto step_end = static_cast<Time>(held_bytes.size());
  std::vector<int64_t> change(held_bytes.size() + 1, 0);
  for (const Value& value : values) {
    // From the first write to the last request, except while it is held.
    Time begin = EndOf(value.writers.front());
    const auto add = [&](Time end) {
      end = std::min({end, value.last_request, step_end});
      if (begin >= end) return;
      change[begin] += value.bytes;
      change[end] -= value.bytes;
    };
    for (const auto& [held_begin, held_end] : value.held_during) {
      add(held_begin);
      begin = std::max(begin, held_end);
    }
    add(step_end);
  }
  graph::IndexedVector<OperatorId, int64_t> bytes = held_bytes;
  int64_t kept_bytes = 0;
  for (const OperatorId op : bytes.ids()) {
    kept_bytes += change[StartOf(op)];
    bytes[op] += kept_bytes;
  }
  return bytes;
}

RerunProblem BuildRerunProblem(
    const Trace& trace,
    const graph::IndexedVector<OperatorId, int64_t>& bytes_of_rank) {
  return ScheduleBuilder(trace, bytes_of_rank).Build();
}

}  // namespace acplan::problems
