#include "costmodel/calculon/hardware/efficiency_curve.h"

#include <cmath>
#include <cstddef>

namespace acplan::costmodel {

EfficiencyCurve::EfficiencyCurve(double peak,
                                 const std::vector<EfficiencyStep>& steps)
    : peak_(peak) {
  for (const EfficiencyStep& step : steps) {
    steps_.push_back({step.least_size, peak * step.efficiency});
  }
}

}  // namespace acplan::costmodel
