#include "problems/plan/times_off.h"

#include <algorithm>

namespace acplan::problems {

graph::ByKind<double> EqualFactors(double factor) {
  graph::ByKind<double> factors;
  factors.fill(factor);
  return factors;
}

double LargestOf(const graph::ByKind<double>& factors) {
  return *std::ranges::max_element(factors);
}

bool AreEqual(const graph::ByKind<double>& factors) {
  return factors == EqualFactors(factors.front());
}

std::optional<graph::ByKind<double>> MeasuredFactors(
    const graph::DeviceInfo& device) {
  if (!device.time_errors || !device.time_errors->ninety_of_kinds) {
    return std::nullopt;
  }
  graph::ByKind<double> factors = *device.time_errors->ninety_of_kinds;
  for (double& factor : factors) factor = 1 / (1 - factor);
  return factors;
}

}  // namespace acplan::problems
