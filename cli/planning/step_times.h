#pragma once

#include "problems/plan/plan.h"

namespace acplan::cli {

// A step without a plan and with it, in milliseconds: on the device's streams, or the host's
// time where the step waits for the host.
struct StepTimes {
  double before_ms = 0;
  double after_ms = 0;
};

StepTimes StepTimesOf(const problems::Plan& plan);

// Returns the share by which a plan makes a step longer.
double StepOverheadOf(const problems::Plan& plan);

// Returns the share of a plan's step, or of what it recomputes if its step is not searched for,
// that a better plan saves at most.
double GapOf(const problems::Plan& plan);

}  // namespace acplan::cli
