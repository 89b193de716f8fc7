#pragma once

#include "graph/profile/profile.h"

namespace acplan::test_support {

// Returns a GPT of `layers` layers with 13 modules each, and a root, an
// embedding, a final norm and a head: bytes, times and fits like those of GPT-2
// small (batch 8, 1024 tokens). All sums are consistent: activations,
// gradients, snapshots. Every number of a layer is multiplied by a factor of
// its own from [1 - jitter, 1 + jitter]; with 0 all layers are identical.
//
// Modules that are no leaves have operator statistics: 30 operators a layer,
// including those of its attention and its MLP, and the root has all. A layer
// has views, an in-place pair and a random operator; all its operators together
// make about 1.7 times the bytes that autograd keeps.
graph::Profile SyntheticGpt(int layers, double jitter = 0, unsigned seed = 1);

struct RandomProfileOptions {
  int most_modules = 14;
  // Probabilities.
  double several_roots = 0.3;
  double identical_blocks = 0.5;
  double unmatched_post_order = 0.1;
  double never_called = 0.1;
  double snapshots = 0.5;
  double held_bytes = 0.6;
  double statistics = 0.4;  // operators, some of which must be saved
  // If at least 1: nine in ten of the modules that are no leaves have
  // statistics of up to so many operators (random_operators.h), and
  // `statistics` has no effect.
  int most_operators = 0;
  double unusable_fit = 0.1;
  double below_internal = 0.15;  // SAC memory below the activations
  // Only cases that PyTorch's sac_milp solves correctly: one root, records that
  // hold the activations before them, and rising fits far from its big-M.
  bool for_literal_form = false;
};

// Returns a small profile with all that a profile may hold. Equal seeds give
// equal profiles.
graph::Profile RandomProfile(unsigned seed,
                             const RandomProfileOptions& options = {});

}  // namespace acplan::test_support
