#include "problems/remat/row_bytes.h"

#include <algorithm>
#include <cstddef>

// At a moment of forward a value takes its bytes if it is kept, made before and
// not live anyway; between the passes, if it is kept. At a moment of backward
// it takes its bytes from the time when it is there to the time when it is
// needed last. A moment at which an operator runs again exists only if the
// operator does: its row has `absent` more room, which exceeds the bytes of all
// values together, and the operator takes that room back if it runs again at
// that time. If it certainly does, the row has no such room.

namespace acplan::problems {

RowBytes::RowBytes(const RematProblem& problem,
                   const std::vector<RematMoment>& rows, const NeedClock& clock,
                   const std::vector<RematCondition>& conditions,
                   const RematBudget& budget)
    : problem_(problem), rows_(rows), clock_(clock) {
  int64_t all = 0;
  for (const RematValue& value : problem.values) all += value.bytes;
  for (const RematMoment& row : rows) {
    const bool is_met =
        std::ranges::any_of(conditions, [&](const RematCondition& condition) {
          return condition.is_met && condition.moment == row;
        });
    const bool may_be_absent = row.kind == RematMoment::Kind::kAgain && !is_met;
    const int64_t room = problem.RoomAt(row, budget);
    absent_.push_back(may_be_absent ? all + std::max<int64_t>(0, -room) : 0);
    room_.push_back(room + absent_.back());
  }
}

std::vector<int64_t> RowBytes::BytesOf(int32_t op, const RematChoice& choice,
                                       const RematNeeds& needs) const {
  const std::vector<int32_t>& makes = problem_.operators[op].makes;
  std::vector<int64_t> bytes(rows_.size(), 0);
  const int32_t first_row = choice.is_again
                                ? clock_.FirstRowOf(choice.first, op)
                                : static_cast<int32_t>(rows_.size());
  for (size_t i = 0; i < makes.size(); ++i) {
    const RematValue& value = problem_.values[makes[i]];
    const RematNeed& need = needs.of_values[i];
    const bool is_kept = (choice.kept_bits & value.Bit()) != 0;
    const bool is_needed = (needs.needed_bits & value.Bit()) != 0;
    const int32_t forward = is_kept ? clock_.forward_rows() : need.early - 1;
    for (int32_t row = 0; row < forward; ++row)
      if (IsMoreIfKept(value, rows_[row].op)) bytes[row] += value.bytes;
    int32_t row = is_kept ? clock_.forward_rows() : first_row;
    for (; is_needed && row < need.last; ++row) bytes[row] += value.bytes;
  }
  if (choice.is_again) AddAgain(op, choice, needs, bytes);
  if (choice.is_early) AddEarly(op, choice, needs, bytes);
  return bytes;
}

// Adds the bytes at the rows at which this very operator runs again.
void RowBytes::AddAgain(int32_t op, const RematChoice& choice,
                        const RematNeeds& needs,
                        std::vector<int64_t>& bytes) const {
  for (auto row = static_cast<size_t>(clock_.forward_rows());
       row < rows_.size(); ++row) {
    const RematMoment& moment = rows_[row];
    if (moment.kind != RematMoment::Kind::kAgain || moment.op != op) continue;
    if (!clock_.IsAt(moment, choice.first)) continue;
    bytes[row] += absent_[row];
    // Values that it makes a second time, and values that nothing needs.
    const uint64_t others = choice.kept_bits | ~needs.needed_bits;
    for (const int32_t v : problem_.operators[op].makes) {
      const RematValue& value = problem_.values[v];
      if (others & value.Bit()) bytes[row] += value.bytes;
    }
  }
}

// Adds the bytes at the row at which forward runs this very operator of stage
// either.
void RowBytes::AddEarly(int32_t op, const RematChoice& choice,
                        const RematNeeds& needs,
                        std::vector<int64_t>& bytes) const {
  const RematOperator& early_op = problem_.operators[op];
  for (int32_t row = 0; row < clock_.forward_rows(); ++row) {
    if (rows_[row].op != op) continue;
    bytes[row] += early_op.scratch_bytes;
    for (size_t i = 0; i < early_op.makes.size(); ++i) {
      const RematValue& value = problem_.values[early_op.makes[i]];
      const bool is_counted =
          (choice.kept_bits & value.Bit()) != 0 || needs.of_values[i].early > 0;
      if (!is_counted) bytes[row] += value.bytes;
    }
  }
}

}  // namespace acplan::problems
