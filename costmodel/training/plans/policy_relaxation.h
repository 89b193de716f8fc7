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

// Relaxes a problem in which one layer of each kind has policy `first_large` or a later one
// of its kind.
Relaxation RelaxWithLarge(const std::array<LayerOffer, 2>& offers,
                          const std::array<size_t, 2>& first_large,
                          double share, double room);

// Returns whether the GPU (or, if not `is_gpu`, the host) is the slower one under every
// policy.
bool TakesLonger(const std::array<LayerOffer, 2>& offers, bool is_gpu);

// Returns the share of the GPU's seconds that gives the best bound.
double BestShare(const std::array<LayerOffer, 2>& offers, double room);

}  // namespace acplan::costmodel
