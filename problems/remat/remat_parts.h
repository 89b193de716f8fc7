#pragma once

#include <optional>
#include <vector>

#include "problems/remat/need_clock.h"
#include "problems/remat/remat_problem.h"

namespace acplan::problems {

// Plans that meet conditions.
struct RematPart {
  std::vector<RematCondition> conditions = {};
  double bound_ms = 0;

  // The condition on a moment, if there is one.
  const RematCondition* On(const RematMoment& moment) const {
    for (const RematCondition& condition : conditions)
      if (condition.moment == moment) return &condition;
    return nullptr;
  }
};

// The moments at which plans are looked at, and those at which plans were found to break
// the budget.
struct RematRows {
  // For the next round, where it is no row yet.
  void Wish(const std::optional<RematMoment>& moment);
  // Makes what was wished rows. Returns whether there was any.
  bool Add();

  // Those that plans of a part may have.
  std::vector<RematMoment> Of(const RematPart& part) const;
  // One of an operator that may run again, on which the part has no condition.
  std::optional<RematMoment> OpenIn(const RematPart& part) const;

  std::vector<RematMoment> rows = {};
  std::vector<RematMoment> wished = {};
};

}  // namespace acplan::problems
