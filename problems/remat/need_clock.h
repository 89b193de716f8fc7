#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// That an operator runs again before a backward node, or that it does not: at other times
// it may.
struct RematCondition {
  RematMoment moment = {};
  bool is_met = false;
};

// When a value is needed, as far as the rows of a decision graph tell times apart.
struct RematNeed {
  int32_t first = 0;  // a class of backward nodes
  int32_t last = 0;   // rows before this one are not after the last need
  // 0: no operator of stage either reads it that forward runs; else one more than the
  // rows of forward until then, where it is not live until then anyway.
  int32_t early = 0;

  bool operator==(const RematNeed&) const = default;
};

// Turns backward nodes into classes, and classes into rows.
class NeedClock {
 public:
  // Refers to the rows, which are sorted: those of forward first.
  NeedClock(const std::vector<RematMoment>& rows,
            const std::vector<RematCondition>& conditions);

  int32_t forward_rows() const { return forward_; }
  RematNeed None() const { return {.first = Never(), .last = forward_}; }
  bool IsNone(const RematNeed& need) const { return need.first == Never(); }

  // Of backward's own reads.
  RematNeed Direct(const RematValue& value) const;
  // Of what `op` reads that runs again, first needed at the class `first`.
  RematNeed OfReader(int32_t first, int32_t op) const;
  // The first row at which there is what `op` makes then.
  int32_t FirstRowOf(int32_t first, int32_t op) const;
  // Returns whether a moment of rows or conditions, of an operator that runs again, is at
  // that time.
  bool IsAt(const RematMoment& moment, int32_t first) const {
    return moment.backward == BackwardOf(first);
  }
  // `early` of a value that `op` of stage either reads in forward.
  int32_t EarlyClass(const RematValue& value, bool is_made_by_either,
                     int32_t op) const;

 private:
  int32_t Never() const { return static_cast<int32_t>(steps_.size()) + 1; }
  int32_t Class(int32_t backward) const;
  int32_t BackwardOf(int32_t first) const;
  int32_t RowsBefore(int32_t first, int32_t op, bool is_included) const;

  const std::vector<RematMoment>& rows_;
  std::vector<int32_t> steps_;  // where the next class begins
  int32_t forward_ = 0;
};

// Sorts rows as the clock takes them, each once.
std::vector<RematMoment> SortedRows(std::vector<RematMoment> rows);

// A value that is kept is more at that operator of forward than what is live anyway.
inline bool IsMoreIfKept(const RematValue& value, int32_t op) {
  return value.maker <= op && value.live_until < op;
}

}  // namespace acplan::problems
