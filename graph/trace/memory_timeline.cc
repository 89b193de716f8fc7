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
      count_(static_cast<int32_t>(trace.operators.size())),
      first_backward_(std::min(trace.forward_end + 1, trace.backward_end)),
      running_(count_ + 1),
      between_(count_ + 2),
      peaks_(std::vector<int64_t>()) {
  std::vector<int32_t> gradient_since(trace.storages.size(), 0);
  for (int32_t k = trace.forward_end; k < trace.backward_end; ++k) {
    for (const int32_t s : trace.operators[k].outputs) {
      gradient_since[s] = k + 1;
    }
  }
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    AddStorage(trace.storages[s], gradient_since[s]);
  }
  for (int32_t k = 1; k <= count_; ++k) Add(running_[k], running_[k - 1]);
  for (int32_t t = 1; t <= count_; ++t) Add(between_[t], between_[t - 1]);
  peaks_ = RangeMaximum(Totals());
  SortByDeath();
}

MemorySnapshot MemoryTimeline::FreedAt(int32_t time,
                                       int32_t born_before) const {
  const auto dead_before =
      [&](std::pair<int32_t, int32_t> key) -> const MemorySnapshot& {
    const auto place =
        std::ranges::lower_bound(by_death_, key, {},
                                 [&](int32_t s) { return DeathAndBirth(s); }) -
        by_death_.begin();
    return dead_[place];
  };
  MemorySnapshot freed = dead_before({time, born_before});
  const MemorySnapshot& earlier = dead_before({time, -1});
  for (size_t c = 0; c < freed.size(); ++c) freed[c] -= earlier[c];
  return freed;
}

const MemorySnapshot& MemoryTimeline::Peak(int32_t begin, int32_t end) const {
  return running_[peaks_.PlaceIn(begin, end)];
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
  if (storage.born < 0) return kOther;
  if (storage.born < first_backward_) return kAct;
  return storage.born < trace_.backward_end ? kTemp : kOpt;
}

std::vector<int64_t> MemoryTimeline::Totals() const {
  std::vector<int64_t> totals(count_);
  for (int32_t k = 0; k < count_; ++k) totals[k] = running_[k][kTotal];
  return totals;
}

std::pair<int32_t, int32_t> MemoryTimeline::DeathAndBirth(
    int32_t storage) const {
  return {trace_.storages[storage].freed, trace_.storages[storage].born};
}

// A gradient that backward makes is temporary until `gradient_since`.
void MemoryTimeline::AddStorage(const TraceStorage& storage,
                                int32_t gradient_since) {
  const int64_t bytes = AllocatedBytes(storage.bytes);
  const int32_t born = storage.born;
  const int32_t end =
      std::min(std::max(storage.freed, std::max(born, 0) + 1), count_);
  const int32_t last = std::min(storage.freed - 1, count_);
  const auto add = [&](MemoryCategory category, int32_t start, int32_t stop) {
    const auto put = [&](std::vector<MemorySnapshot>& changes, int32_t first,
                         int32_t end_place) {
      first = std::max(first, 0);
      if (first >= end_place) return;
      Add(changes[first], category, bytes);
      Add(changes[end_place], category, -bytes);
    };
    put(running_, std::max(born, start), std::min(end, stop));
    put(between_, std::max(born + 1, start), std::min(last + 1, stop));
  };
  if (storage.category == StorageCategory::kGradient && born >= 0 &&
      born < trace_.backward_end) {
    const int32_t start = std::max(gradient_since, born + 1);
    add(kTemp, 0, start);
    add(kGrad, start, kNever);
  } else {
    add(CategoryOf(storage), 0, kNever);
  }
}

void MemoryTimeline::SortByDeath() {
  by_death_.resize(trace_.storages.size());
  std::iota(by_death_.begin(), by_death_.end(), 0);
  std::ranges::sort(by_death_, {}, [&](int32_t s) { return DeathAndBirth(s); });
  dead_.resize(by_death_.size() + 1);
  for (size_t i = 0; i < by_death_.size(); ++i) {
    dead_[i + 1] = dead_[i];
    const TraceStorage& storage = trace_.storages[by_death_[i]];
    Add(dead_[i + 1], CategoryOf(storage), AllocatedBytes(storage.bytes));
  }
}

}  // namespace acplan::graph
