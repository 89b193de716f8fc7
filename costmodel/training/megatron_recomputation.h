#pragma once

#include <cstdint>
#include <optional>

#include "costmodel/training/training_report.h"

namespace acplan::costmodel {

// Megatron-Core's words say three kinds of recomputation: none, the first layers of each
// stage, or parts of all layers.

struct MegatronAnswer {
  TrainingReport report = {};
  bool fits = false;
  int64_t tried_count = 0;
};

// Returns the report of the job with the recomputation that is fastest within `budget` bytes
// among all that these words can say, and needs the least memory among equally fast ones.
// If none fits, returns the one with the least memory. Throws InputError if the job is legal
// with none of them.
MegatronAnswer BestOfMegatron(const TrainingJob& job, double budget);

}  // namespace acplan::costmodel
