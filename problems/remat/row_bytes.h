#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/need_clock.h"
#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// The decision about an operator.
struct RematChoice {
  uint64_t kept_bits = 0;  // RematValue::Bit
  bool is_again = false;
  bool is_early = false;  // whether forward runs it, of stage either
  int32_t first = 0;      // the class at which it runs again
};

// The needs of an operator's values when its turn comes.
struct RematNeeds {
  std::vector<RematNeed> of_values = {};  // RematOperator::makes
  uint64_t needed_bits = 0;               // by backward, RematValue::Bit
};

// The bytes that decisions take at rows.
class RowBytes {
 public:
  // Refers to all arguments. `conditions` that are met say that a row's
  // operator runs again.
  RowBytes(const RematProblem& problem, const std::vector<RematMoment>& rows,
           const NeedClock& clock,
           const std::vector<RematCondition>& conditions,
           const RematBudget& budget);

  // Returns, by row, the bytes that decisions may take.
  const std::vector<int64_t>& room() const { return room_; }

  // Returns, by row, the bytes that a decision about an operator takes.
  std::vector<int64_t> BytesOf(int32_t op, const RematChoice& choice,
                               const RematNeeds& needs) const;

 private:
  void AddAgain(int32_t op, const RematChoice& choice, const RematNeeds& needs,
                std::vector<int64_t>& bytes) const;
  void AddEarly(int32_t op, const RematChoice& choice, const RematNeeds& needs,
                std::vector<int64_t>& bytes) const;

  const RematProblem& problem_;
  const std::vector<RematMoment>& rows_;
  const NeedClock& clock_;
  std::vector<int64_t> room_;
  std::vector<int64_t> absent_;  // by row
};

}  // namespace acplan::problems
