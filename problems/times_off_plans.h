#pragma once

#include "problems/ask.h"
#include "problems/plan/times_off.h"
#include "solver/search.h"

namespace acplan::problems {

// Returns an answer whose plan says what it can lose if run-times are wrong, if it is on a
// trace, without offload, and neither its step nor that of a plan that recomputes less waits
// for the host: the device's times are compared, and a robust plan's step does not wait. If question.times_off is not given, that is what follows from
// the plan's own bound, for kTimesOff. If it is, better plans for other run-times are
// searched for within the limits, and a robust question gets the plan that loses least.
// Throws std::logic_error if that plan fails its check.
Answer WithTimesOff(const Question& question, Answer answer,
                    const solver::SearchLimits& limits);

}  // namespace acplan::problems
