#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/need_clock.h"
#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// What is decided about an operator.
struct RematChoice {
  uint64_t kept = 0;  // RematValue::Bit
  bool is_again = false;
  bool is_early = false;  // of stage either, and forward runs it
  int32_t first = 0;      // class of when it runs again
};

// An operator's values when its turn comes.
struct RematNeeds {
  std::vector<RematNeed> of_values = {};  // RematOperator::makes
  uint64_t needed = 0;                    // by backward, RematValue::Bit
};

// What decisions take at rows.
class RowBytes {
 public:
  // Refers to all of them. `conditions` that are met say that a row's operator runs again.
  RowBytes(const RematProblem& problem, const std::vector<RematMoment>& rows,
           const NeedClock& clock,
           const std::vector<RematCondition>& conditions,
           const RematBudget& budget);

  // A row: what decisions may come to.
  const std::vector<int64_t>& room() const { return room_; }

  // A row: what a decision about an operator comes to.
  std::vector<int64_t> Of(int32_t op, const RematChoice& choice,
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
  std::vector<int64_t> absent_;  // a row
};

}  // namespace acplan::problems
