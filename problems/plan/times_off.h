#pragma once

#include <optional>

#include "graph/profile/model_info.h"
#include "graph/profile/operator_kind.h"

namespace acplan::problems {

// The regret of a plan if run-times are wrong (docs/formulation.md#times-that-are-wrong).

// Returns the same factor for each kind.
graph::ByKind<double> EqualFactors(double factor);

// Returns the largest factor.
double LargestOf(const graph::ByKind<double>& factors);

// Returns whether all kinds have one factor.
bool AreEqual(const graph::ByKind<double>& factors);

// Returns the factors by which nine measured operators in ten are off at most, or nothing
// if none was measured. A measured time with |predicted / measured - 1| <= e is between
// the prediction times 1 - e and the prediction over 1 - e, so the factor is 1 / (1 - e).
std::optional<graph::ByKind<double>> MeasuredFactors(
    const graph::DeviceInfo& device);

// A share of a time: of the step with the best plan for the true run-times, or of that
// plan's recomputation. For all run-times in a box around the estimates, the plan takes at
// most so much longer than the best plan within the budget for these run-times.
struct WorstRegret {
  double step = 0;
  // Nothing: no bound is proven.
  std::optional<double> recomputation = {};

  bool operator==(const WorstRegret&) const = default;
};

struct RegretBounds {
  WorstRegret upper;  // proven
  // A plan is known that is so much better for some run-times of the box. Only if it was
  // searched for.
  std::optional<WorstRegret> lower = {};

  bool operator==(const RegretBounds&) const = default;
};

struct TimesOff {
  // A true run-time is between estimate / factor and estimate * factor, with the factor of
  // the operator's kind.
  graph::ByKind<double> factors = EqualFactors(1);
  RegretBounds by_kind;      // one ratio for all operators of a kind
  RegretBounds by_operator;  // any ratio for each operator
  // The ratios of kinds for which the step loses most, as far as is proven; 0 for a kind
  // without run-time. Only if it was searched for.
  std::optional<graph::ByKind<double>> worst_kinds = {};
  // In a robust plan: the worst of every plan, by kind and as a share of the step, is at
  // least this.
  std::optional<double> least_step = {};

  bool operator==(const TimesOff&) const = default;
};

}  // namespace acplan::problems
