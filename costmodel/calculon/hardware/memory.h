#pragma once

#include "costmodel/calculon/hardware/efficiency_curve.h"

namespace acplan::costmodel {

// A tier of a processor's memory, with bytes/s as a function of the operation's bytes.
struct Memory {
  double capacity = 0;  // bytes
  EfficiencyCurve bandwidth;
};

}  // namespace acplan::costmodel
