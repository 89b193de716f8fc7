#include "problems/remat/need_clock.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

// Rows are moments: of a backward node, or of an operator that runs again
// before it. The backward node alone determines whether a need is before a row,
// except for rows of operators, which tell the node itself from those before
// and after it.

namespace acplan::problems {
namespace {

bool IsBefore(const RematMoment& a, const RematMoment& b) {
  const bool is_a_forward = a.kind == RematMoment::Kind::kForward;
  const bool is_b_forward = b.kind == RematMoment::Kind::kForward;
  if (is_a_forward != is_b_forward) return is_a_forward;
  if (is_a_forward) return a.op < b.op;
  if (a.backward != b.backward) return a.backward < b.backward;
  if (a.kind != b.kind) return a.kind == RematMoment::Kind::kAgain;
  return a.kind == RematMoment::Kind::kAgain && a.op < b.op;
}

}  // namespace

std::vector<RematMoment> SortedRows(std::vector<RematMoment> rows) {
  std::ranges::sort(rows, IsBefore);
  rows.erase(std::ranges::unique(rows).begin(), rows.end());
  return rows;
}

NeedClock::NeedClock(const std::vector<RematMoment>& rows,
                     const std::vector<RematCondition>& conditions)
    : rows_(rows) {
  for (const RematCondition& condition : conditions) {
    steps_.push_back(condition.moment.backward);
    steps_.push_back(condition.moment.backward + 1);
  }
  for (const RematMoment& row : rows) {
    if (row.kind == RematMoment::Kind::kForward) {
      ++forward_;
      continue;
    }
    if (row.kind == RematMoment::Kind::kAgain) steps_.push_back(row.backward);
    steps_.push_back(row.backward + 1);
  }
  std::ranges::sort(steps_);
  steps_.erase(std::ranges::unique(steps_).begin(), steps_.end());
}

RematNeed NeedClock::Direct(const RematValue& value) const {
  if (value.last_read < 0) return None();
  RematNeed need{.first = Class(value.first_read), .last = forward_};
  while (need.last < std::ssize(rows_) &&
         rows_[need.last].backward <= value.last_read) {
    ++need.last;
  }
  return need;
}

RematNeed NeedClock::OfReader(int32_t first, int32_t op) const {
  return {.first = first, .last = RowsBefore(first, op, true)};
}

int32_t NeedClock::FirstRowOf(int32_t first, int32_t op) const {
  return RowsBefore(first, op, false);
}

int32_t NeedClock::EarlyClass(const RematValue& value, bool is_made_by_either,
                              int32_t op) const {
  int32_t row = 0;
  bool is_longer = is_made_by_either;
  for (; row < forward_ && rows_[row].op <= op; ++row)
    is_longer = is_longer || IsMoreIfKept(value, rows_[row].op);
  return is_longer ? row + 1 : 0;
}

int32_t NeedClock::Class(int32_t backward) const {
  return static_cast<int32_t>(std::ranges::upper_bound(steps_, backward) -
                              steps_.begin());
}

// Returns a backward node of the class: the only one if there is a row of an
// operator there.
int32_t NeedClock::BackwardOf(int32_t first) const {
  return first == 0 ? -1 : steps_[static_cast<size_t>(first) - 1];
}

// Returns the number of rows before the time at which `op` runs again, or
// including it.
int32_t NeedClock::RowsBefore(int32_t first, int32_t op,
                              bool is_included) const {
  const int32_t at = BackwardOf(first);
  int32_t row = forward_;
  for (; row < std::ssize(rows_); ++row) {
    const RematMoment& m = rows_[row];
    if (m.backward < at) continue;
    if (m.backward > at || m.kind != RematMoment::Kind::kAgain) break;
    if (m.op > op || (m.op == op && !is_included)) break;
  }
  return row;
}

}  // namespace acplan::problems
