#pragma once

#include <limits>

#include "costmodel/training/plans/policy_choice.h"

namespace acplan::costmodel {

// The least value of sum c, c = share g + (1 - share) h, subject to sum b <= room, for
// divisible layers (policy_choice.h defines the letters).
struct Relaxation {
  double seconds = std::numeric_limits<double>::infinity();
  double price = 0;  // seconds per byte
  double share = 0;  // the share of the GPU's seconds in c
};

Relaxation RelaxAt(const std::array<LayerOffer, 2>& offers, double share,
                   double room);

}  // namespace acplan::costmodel
