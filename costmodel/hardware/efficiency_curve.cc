#include "costmodel/hardware/efficiency_curve.h"

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

double EfficiencyCurve::SmoothThroughput(double size) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& low = steps_[i];
    if (size < low.least_size && i + 1 < steps_.size()) continue;
    if (i == 0 || size <= low.least_size) return low.throughput;
    const Step& high = steps_[i - 1];
    const double share =
        low.least_size > 0
            ? std::log(size / low.least_size) /
                  std::log(high.least_size / low.least_size)
            : (size - low.least_size) / (high.least_size - low.least_size);
    return std::lerp(low.throughput, high.throughput, share);
  }
  return 0;
}

}  // namespace acplan::costmodel
