#pragma once

#include <vector>

namespace acplan::costmodel {

// The share of a peak that an operation reaches from this size on (FLOPs or bytes).
struct EfficiencyStep {
  double least_size = 0;
  double efficiency = 1;  // in (0, 1]
};

// The share of a peak that an operation reaches, as a function of its size.
class EfficiencyCurve {
 public:
  EfficiencyCurve() = default;
  // Constructs a curve from `steps` that descend strictly in size; the last one begins at 0
  // or below.
  EfficiencyCurve(double peak, const std::vector<EfficiencyStep>& steps);

  double peak() const { return peak_; }

  // Returns the throughput of the first step that begins at or below `size`.
  double Throughput(double size) const {
    for (const Step& step : steps_) {
      if (size >= step.least_size) return step.throughput;
    }
    return steps_.empty() ? 0 : steps_.back().throughput;
  }

 private:
  struct Step {
    double least_size;
    double throughput;
  };

  double peak_ = 0;
  std::vector<Step> steps_;
};

}  // namespace acplan::costmodel
