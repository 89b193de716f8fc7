#include "graph/trace/memory_timeline.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

#include "graph/trace/allocation.h"

namespace acplan::graph {

// A sparse table: level l knows the place of the largest of every 2^l values in
// a row, and two such rows, which may overlap, cover any range.
RangeMaximum::RangeMaximum(std::vector<int64_t> values)
    : values_(std::move(values)) {
  first_.emplace_back(values_.size());
  std::iota(first_[0].begin(), first_[0].end(), 0);
  for (size_t half = 1; 2 * half <= values_.size(); half *= 2) {
    const std::vector<int32_t>& lower = first_.back();
    std::vector<int32_t> level(values_.size() - 2 * half + 1);
    for (size_t i = 0; i < level.size(); ++i) {
      level[i] = Larger(lower[i], lower[i + half]);
    }
    first_.push_back(std::move(level));
  }
}

int32_t RangeMaximum::PlaceIn(int32_t begin, int32_t end) const {
  const int level = std::bit_width(static_cast<uint32_t>(end - begin)) - 1;
  return Larger(first_[level][begin], first_[level][end - (1 << level)]);
}

int32_t RangeMaximum::Larger(int32_t a, int32_t b) const {
  if (values_[a] != values_[b]) return values_[a] > values_[b] ? a : b;
  return std::min(a, b);
}

// Every storage adds its bytes where its life begins and takes them away where
// it ends; running sums over that are the snapshots.
MemoryTimeline::MemoryTimeline(const Trace& trace)
    : trace_(trace),
      end_(static_cast<Time>(trace.operators.size())),
      first_backward_(std::min(trace.forward_end + 1, trace.backward_end)),
      running_(end_ + size_t{1}),
      between_(end_ + size_t{2}),
      peaks_(std::vector<int64_t>()) {
  IndexedVector<StorageId, Time> gradient_since(trace.storages.size(), 0);
  for (const OperatorId op :
       OperatorsIn(trace.forward_end, trace.backward_end)) {
    for (const StorageId s : trace.operators[op].outputs) {
      gradient_since[s] = EndOf(op);
    }
  }
  for (const StorageId s : trace.storages.ids()) {
    AddStorage(trace.storages[s], gradient_since[s]);
  }
  for (Time t = 1; t <= end_; ++t) {
    Add(running_[OperatorAt(t)], running_[OperatorAt(t - 1)]);
    Add(between_[t], between_[t - 1]);
  }
  peaks_ = RangeMaximum(Totals());
  SortByDeath();
}

MemorySnapshot MemoryTimeline::FreedAt(Time time, Time born_before) const {
  const auto dead_before =
      [&](std::pair<Time, OperatorId> key) -> const MemorySnapshot& {
    const auto place =
        std::ranges::lower_bound(
            by_death_, key, {}, [&](StorageId s) { return DeathAndBirth(s); }) -
        by_death_.begin();
    return dead_[place];
  };
  MemorySnapshot freed = dead_before({time, OperatorAt(born_before)});
  const MemorySnapshot& earlier = dead_before({time, kNone});
  for (size_t c = 0; c < freed.size(); ++c) freed[c] -= earlier[c];
  return freed;
}

const MemorySnapshot& MemoryTimeline::Peak(Time begin, Time end) const {
  return running_[OperatorAt(peaks_.PlaceIn(begin, end))];
}

MemoryCategory MemoryTimeline::CategoryOf(const TraceStorage& storage) const {
  switch (storage.category) {
    case StorageCategory::kParameter:
      return kParam;
    case StorageCategory::kBuffer:
      return kBuffer;
    case StorageCategory::kGradient:
      return kGrad;
    case StorageCategory::kOptimizer:
      return kOpt;
    case StorageCategory::kInput:
      return kOther;
    case StorageCategory::kActivation:
    case StorageCategory::kTemporary:
      break;
  }
  if (storage.born == kNone) return kOther;
  if (storage.IsOlderThan(first_backward_)) return kAct;
  return storage.IsOlderThan(trace_.backward_end) ? kTemp : kOpt;
}

std::vector<int64_t> MemoryTimeline::Totals() const {
  std::vector<int64_t> totals;
  totals.reserve(end_);
  for (const OperatorId op : OperatorsIn(0, end_)) {
    totals.push_back(running_[op][kTotal]);
  }
  return totals;
}

std::pair<Time, OperatorId> MemoryTimeline::DeathAndBirth(
    StorageId storage) const {
  return {trace_.storages[storage].freed, trace_.storages[storage].born};
}

// A gradient that backward makes is temporary until `gradient_since`.
void MemoryTimeline::AddStorage(const TraceStorage& storage,
                                Time gradient_since) {
  const int64_t bytes = AllocatedBytes(storage.bytes);
  const Time born = StartOf(storage.born);
  const Time end =
      std::min(std::max(storage.freed, std::max(born, 0) + 1), end_);
  const Time last = std::min(storage.freed - 1, end_);
  const auto add = [&](MemoryCategory category, Time start, Time stop) {
    const auto running_begin = std::max({born, start, 0});
    const auto running_end = std::min(end, stop);
    if (running_begin < running_end) {
      Add(running_[OperatorAt(running_begin)], category, bytes);
      Add(running_[OperatorAt(running_end)], category, -bytes);
    }
    const auto between_begin = std::max({born + 1, start, 0});
    const auto between_end = std::min(last + 1, stop);
    if (between_begin < between_end) {
      Add(between_[between_begin], category, bytes);
      Add(between_[between_end], category, -bytes);
    }
  };
  if (storage.category == StorageCategory::kGradient && born >= 0 &&
      born < trace_.backward_end) {
    const Time start = std::max(gradient_since, born + 1);
    add(kTemp, 0, start);
    add(kGrad, start, kNever);
  } else {
    add(CategoryOf(storage), 0, kNever);
  }
}

void MemoryTimeline::SortByDeath() {
  const IdRange<StorageId> ids = trace_.storages.ids();
  by_death_.assign(ids.begin(), ids.end());
  std::ranges::sort(by_death_, {},
                    [&](StorageId s) { return DeathAndBirth(s); });
  dead_.resize(by_death_.size() + 1);
  for (size_t i = 0; i < by_death_.size(); ++i) {
    dead_[i + 1] = dead_[i];
    const TraceStorage& storage = trace_.storages[by_death_[i]];
    Add(dead_[i + 1], CategoryOf(storage), AllocatedBytes(storage.bytes));
  }
}

}  // namespace acplan::graph
