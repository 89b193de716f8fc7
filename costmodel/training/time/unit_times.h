#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "costmodel/training/layer/operation_times.h"

namespace acplan::costmodel {

// Seconds of one microbatch.
struct UnitTime {
  PassTime forward = {};
  PassTime backward = {};
  PassTime recomputation = {};  // recomputation

  UnitTime& operator+=(const UnitTime& other) {
    forward += other.forward;
    backward += other.backward;
    recomputation += other.recomputation;
    return *this;
  }
  UnitTime operator*(double count) const {
    return {forward * count, backward * count, recomputation * count};
  }
  double Total() const {
    return forward.Total() + backward.Total() + recomputation.Total();
  }
};

// The times of the parts of stages: a layer of each kind that the model has (the mean of
// layers with and without a window), the embedding, and one set of logits with the loss.
// Sharded parameters are assumed to be present. The times depend on the model, the cluster,
// and these parts of the strategy: tensor, context and expert parallelism, the microbatch,
// recomputation, kernels, and whether parameters are sharded; not on pipeline and data
// parallelism.
struct UnitTimes {
  UnitTime dense = {};
  UnitTime moe = {};
  UnitTime embedding = {};
  UnitTime logits = {};
  UnitTime towers = {};  // all of them, for the images of a microbatch
};
UnitTimes TimesOfUnits(const TrainingJob& job);

// Strategies with the same tensor, context and expert parallelism, microbatch,
// recomputation and kernels have the same times of units if these keys are equal: whether
// parameters are sharded, and in few bits the microbatches.
using UnitKey = std::pair<bool, int64_t>;
UnitKey UnitKeyOf(const TrainingStrategy& strategy);

// The times of units that a search has computed, for strategies as above. References are
// valid as long as this object is.
class KnownUnitTimes {
 public:
  const UnitTimes& TimesOf(const TrainingJob& job);

 private:
  std::map<UnitKey, UnitTimes> times_ = {};
};

}  // namespace acplan::costmodel
