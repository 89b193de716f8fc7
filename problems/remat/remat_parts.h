#pragma once

#include <optional>
#include <vector>

#include "problems/remat/need_clock.h"
#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// The plans that meet some conditions.
struct RematPart {
  std::vector<RematCondition> conditions = {};
  double bound_ms = 0;

  // Returns the condition on a moment, if there is one.
  const RematCondition* On(const RematMoment& moment) const {
    for (const RematCondition& condition : conditions)
      if (condition.moment == moment) return &condition;
    return nullptr;
  }
};

// The moments that the search looks at, and those at which plans broke the
// budget.
struct RematRows {
  // Asks for a moment as a row of the next round, if it is no row yet.
  void Wish(const std::optional<RematMoment>& moment);
  // Turns the wished moments into rows. Returns whether there were any.
  bool Add();

  // Returns the rows that plans of a part may have.
  std::vector<RematMoment> RowsOf(const RematPart& part) const;
  // Returns a row of an operator that may run again, on which the part has no
  // condition.
  std::optional<RematMoment> OpenIn(const RematPart& part) const;

  std::vector<RematMoment> rows = {};
  std::vector<RematMoment> wished = {};
};

}  // namespace acplan::problems
