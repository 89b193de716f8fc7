#include "problems/trace/rerun_bound/rerun_problem.h"

#include <algorithm>
#include <cstddef>

#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"

namespace acplan::problems {

using graph::kNever;
using graph::SavedTensor;
using graph::Trace;
using graph::TraceOperator;
using graph::TraceStorage;

namespace {

using Value = RerunProblem::Value;
using Interval = std::pair<int32_t, int32_t>;

bool Contains(const std::vector<int32_t>& values, int32_t value) {
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
  ScheduleBuilder(const Trace& trace, const std::vector<int64_t>& bytes_of_rank)
      : trace_(trace),
        count_(static_cast<int32_t>(trace.operators.size())),
        values_(trace.storages.size()) {
    problem_.held_bytes = bytes_of_rank;
  }

  RerunProblem Build() && {
    for (int32_t op = 0; op < trace_.forward_end; ++op) {
      problem_.runtime_ms.push_back(trace_.operators[op].runtime_ms);
    }
    FindHeld();
    FindUsers();
    for (int32_t s = 0; s < std::ssize(values_); ++s) {
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
    return storage.born >= 0 && storage.born < trace_.forward_end;
  }

  bool MayBeAbsent(int32_t s) const {
    const std::vector<Interval>& held = values_[s].held;
    return IsOfForward(trace_.storages[s]) &&
           (held.size() > 1 || held.front().second < count_);
  }

  void FindHeld() {
    const std::vector<int32_t> held = graph::HeldByOthers(trace_);
    for (int32_t s = 0; s < std::ssize(values_); ++s) {
      const TraceStorage& storage = trace_.storages[s];
      values_[s].storage = s;
      values_[s].bytes = graph::AllocatedBytes(storage.bytes);
      const int32_t begin = std::max(storage.born, 0);
      // It is there while the operator runs that creates it.
      const int32_t end = std::max(held[s], storage.born + 1);
      values_[s].held.emplace_back(begin, std::min(end, count_));
    }
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.unpacked == kNever) continue;
      Value& value = values_[saved.storage];
      value.last_request = std::max(value.last_request, saved.unpacked);
      // Who asks holds it, unless autograd lets go of it at once.
      if (saved.released <= saved.unpacked) continue;
      value.held.emplace_back(saved.unpacked,
                              std::min(saved.local_end, count_));
    }
    std::vector<int64_t> change(static_cast<size_t>(count_) + 1, 0);
    for (Value& value : values_) {
      value.held = Joined(std::move(value.held));
      for (const auto& [begin, end] : value.held) {
        change[begin] += value.bytes;
        change[end] -= value.bytes;
      }
    }
    int64_t held_bytes = 0;
    for (int32_t k = 0; k < count_; ++k) {
      held_bytes += change[k];
      problem_.held_bytes[k] += held_bytes;
    }
  }

  // Who reads a storage, and who writes to it before that.
  void FindUsers() {
    std::vector<int32_t> first_use(values_.size(), kNever);
    for (const SavedTensor& saved : trace_.saved) {
      if (saved.unpacked == kNever) continue;
      int32_t& first = first_use[saved.storage];
      first = std::min(first, saved.packed);
    }
    for (int32_t op = 0; op < trace_.forward_end; ++op) {
      const TraceOperator& now = trace_.operators[op];
      if (now.view) continue;
      for (const int32_t s : now.reads) {
        if (!Needs(op, s)) continue;
        values_[s].readers.push_back(op);
        first_use[s] = std::min(first_use[s], op);
      }
    }
    for (int32_t op = 0; op < trace_.forward_end; ++op) {
      const TraceOperator& now = trace_.operators[op];
      for (const int32_t s : now.creates) values_[s].writers.push_back(op);
      for (const int32_t s : now.mutates) {
        const bool is_before_use = IsOfForward(trace_.storages[s]) &&
                                   op < first_use[s] &&
                                   !Contains(now.creates, s);
        if (is_before_use) values_[s].writers.push_back(op);
      }
    }
  }

  // Whether an operator that runs again needs a storage to be live or made again.
  bool Needs(int32_t op, int32_t s) const {
    const TraceOperator& now = trace_.operators[op];
    const TraceStorage& storage = trace_.storages[s];
    const bool is_writer = Contains(now.mutates, s) || storage.born >= op;
    if (!IsOfForward(storage) || is_writer) return false;
    for (int32_t c = now.call; c >= 0; c = trace_.calls[c].parent) {
      const graph::TraceCall& call = trace_.calls[c];
      if (call.start <= storage.born) break;
      if (!Contains(call.inputs, s)) return false;
    }
    return true;
  }

  const Trace& trace_;
  const int32_t count_;
  std::vector<Value> values_;  // a storage
  RerunProblem problem_;
};

}  // namespace

bool RerunProblem::Value::IsHeldAt(int32_t op) const {
  return std::ranges::any_of(held, [op](const Interval& interval) {
    return interval.first <= op && op < interval.second;
  });
}

std::vector<int64_t> RerunProblem::BytesWithoutReruns() const {
  const auto count = static_cast<int32_t>(held_bytes.size());
  std::vector<int64_t> change(held_bytes.size() + 1, 0);
  for (const Value& value : values) {
    // From the first write to the last request, except while it is held.
    int32_t begin = value.writers.front() + 1;
    const auto add = [&](int32_t end) {
      end = std::min({end, value.last_request, count});
      if (begin >= end) return;
      change[begin] += value.bytes;
      change[end] -= value.bytes;
    };
    for (const auto& [held_begin, held_end] : value.held) {
      add(held_begin);
      begin = std::max(begin, held_end);
    }
    add(count);
  }
  std::vector<int64_t> bytes = held_bytes;
  int64_t more = 0;
  for (int32_t op = 0; op < count; ++op) {
    more += change[op];
    bytes[op] += more;
  }
  return bytes;
}

RerunProblem BuildRerunProblem(const Trace& trace,
                               const std::vector<int64_t>& bytes_of_rank) {
  return ScheduleBuilder(trace, bytes_of_rank).Build();
}

}  // namespace acplan::problems
