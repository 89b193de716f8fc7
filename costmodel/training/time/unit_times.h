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
  PassTime again = {};  // what is recomputed

  UnitTime& operator+=(const UnitTime& other) {
    forward += other.forward;
    backward += other.backward;
    again += other.again;
    return *this;
  }
  UnitTime operator*(double count) const {
    return {forward * count, backward * count, again * count};
  }
  double Total() const {
    return forward.Total() + backward.Total() + again.Total();
  }
};

// What stages are made of: a layer of each kind that the model has (of those with
// and without a window their mean), the embedding, and logits with the loss once.
// Parameters that are sharded are taken as there. They depend on the model, the
// cluster, and of the strategy on tensor, context and expert parallelism, the
// microbatch, recomputation, kernels, and whether parameters are sharded; not on
// pipeline and data parallelism.
struct UnitTimes {
  UnitTime dense = {};
  UnitTime moe = {};
  UnitTime embedding = {};
  UnitTime logits = {};
};
UnitTimes TimesOfUnits(const TrainingJob& job);

// Strategies of the same tensor, context and expert parallelism, microbatch,
// recomputation and kernels have the same times of units where these are equal:
// whether parameters are sharded, and in few bits the microbatches.
using UnitKey = std::pair<bool, int64_t>;
UnitKey UnitKeyOf(const TrainingStrategy& strategy);

// Times of units that a search has computed, for strategies as above. References hold
// as long as this does.
class KnownUnitTimes {
 public:
  const UnitTimes& Of(const TrainingJob& job);

 private:
  std::map<UnitKey, UnitTimes> known_ = {};
};

}  // namespace acplan::costmodel
