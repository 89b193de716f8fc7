#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

inline void Add(MemorySnapshot& to, const MemorySnapshot& more) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += more[c];
}

// Adds to the category and to the total.
inline void Add(MemorySnapshot& to, MemoryCategory category, int64_t bytes) {
  to[category] += bytes;
  to[kTotal] += bytes;
}

// Finds the first place of the largest value in any range, in constant time.
class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<int64_t> values);

  int64_t value(int32_t i) const { return values_[i]; }

  // Returns the place in [begin, end), which must not be empty.
  int32_t PlaceIn(int32_t begin, int32_t end) const;

 private:
  int32_t Larger(int32_t a, int32_t b) const;

  std::vector<int64_t> values_;
  // At level l: of the 2^l values from i on.
  std::vector<std::vector<int32_t>> first_;
};

// The bytes of live storages by category, as the trace has them, while every
// operator runs and between two of them. Takes O(n log n) time for n operators
// and storages; each answer then takes constant or logarithmic time. Refers to
// the trace.
class MemoryTimeline {
 public:
  explicit MemoryTimeline(const Trace& trace);

  const MemorySnapshot& Running(OperatorId op) const { return running_[op]; }

  // Returns the bytes without what is freed at the time.
  const MemorySnapshot& Between(Time time) const { return between_[time]; }

  // Returns what is freed at a time and was born before another one.
  MemorySnapshot FreedAt(Time time, Time born_before) const;

  // Returns the first snapshot with the most bytes while the operators [begin,
  // end) run. There must be one.
  const MemorySnapshot& Peak(Time begin, Time end) const;

  // Returns the category of a storage that does not become a gradient.
  MemoryCategory CategoryOf(const TraceStorage& storage) const;

 private:
  std::vector<int64_t> Totals() const;
  std::pair<Time, OperatorId> DeathAndBirth(StorageId storage) const;
  void AddStorage(const TraceStorage& storage, Time gradient_since);
  void SortByDeath();

  const Trace& trace_;
  Time end_;             // of the step
  Time first_backward_;  // after the loss's gradient
  IndexedVector<OperatorId, MemorySnapshot> running_;
  std::vector<MemorySnapshot> between_;  // indexed by time
  std::vector<StorageId> by_death_;      // ordered by death and birth
  std::vector<MemorySnapshot> dead_;     // sums over the first of them
  RangeMaximum peaks_;                   // of the totals of running_
};

}  // namespace acplan::graph
