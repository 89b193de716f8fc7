#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// The condition that an operator runs again before a backward node, or that it
// does not. At other times it may run again.
struct RematCondition {
  RematMoment moment = {};
  bool is_met = false;
};

// The time when a value is needed, as far as the rows of a decision graph tell
// times apart.
struct RematNeed {
  int32_t first = 0;  // a class of backward nodes
  int32_t last = 0;   // rows before this one are not after the last need
  // 0: no operator of stage either that forward runs reads the value; else one
  // more than the number of forward rows until such a read, if the value would
  // not be live until then anyway.
  int32_t early = 0;

  bool operator==(const RematNeed&) const = default;
};

// Turns backward nodes into classes, and classes into rows.
class NeedClock {
 public:
  // Refers to the rows, which must be sorted with those of forward first.
  NeedClock(const std::vector<RematMoment>& rows,
            const std::vector<RematCondition>& conditions);

  int32_t forward_rows() const { return forward_; }
  RematNeed None() const { return {.first = Never(), .last = forward_}; }
  bool IsNone(const RematNeed& need) const { return need.first == Never(); }

  // Returns the need of backward's own reads.
  RematNeed Direct(const RematValue& value) const;
  // Returns the need of a value that `op` reads when it runs again, which is
  // first needed at the class `first`.
  RematNeed OfReader(int32_t first, int32_t op) const;
  // Returns the first row at which the values that `op` makes then are there.
  int32_t FirstRowOf(int32_t first, int32_t op) const;
  // Returns whether a moment of rows or conditions at which an operator runs
  // again is at that time.
  bool IsAt(const RematMoment& moment, int32_t first) const {
    return moment.backward == BackwardOf(first);
  }
  // Returns `early` of a value that `op`, of stage either, reads in forward.
  int32_t EarlyClass(const RematValue& value, bool is_made_by_either,
                     int32_t op) const;

 private:
  int32_t Never() const { return static_cast<int32_t>(steps_.size()) + 1; }
  int32_t Class(int32_t backward) const;
  int32_t BackwardOf(int32_t first) const;
  int32_t RowsBefore(int32_t first, int32_t op, bool is_included) const;

  const std::vector<RematMoment>& rows_;
  std::vector<int32_t> steps_;  // the beginnings of classes after the first
  int32_t forward_ = 0;
};

// Sorts rows as the clock takes them, and drops duplicates.
std::vector<RematMoment> SortedRows(std::vector<RematMoment> rows);

// Returns whether keeping a value adds to the bytes that are live anyway at
// that operator of forward.
inline bool IsMoreIfKept(const RematValue& value, int32_t op) {
  return value.maker <= op && value.live_until < op;
}

}  // namespace acplan::problems
