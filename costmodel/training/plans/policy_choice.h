#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "costmodel/training/plans/layer_policies.h"

namespace acplan::costmodel {

// Layers of a stage that are alike, and the policies that they choose from.
struct LayerOffer {
  std::span<const LayerPolicy> policies = {};  // by ascending bytes
  // The lower hulls of (bytes, seconds), which linear relaxations walk.
  std::span<const size_t> gpu_hull = {};
  std::span<const size_t> host_hull = {};
  double whole_bytes = 0;  // of a layer and microbatch, all that is read
  int64_t layers = 0;
};

// The policies on the lower hull of bytes and `share` of the GPU's seconds with the
// rest of the host's, by ascending bytes.
std::vector<size_t> LowerHull(std::span<const LayerPolicy> policies,
                              double share);

// The room of a stage for what its layers keep.
struct StageRoom {
  double in_flight = 1;  // microbatches
  double bytes = 0;      // beside what does not depend on policies
  double logits = 0;     // that are there when no layer runs again
};

// Labels at once of a choice, and of one of a search over many, which first
// takes what is quick.
inline constexpr size_t kLabelsOfPlan = 50'000;
inline constexpr size_t kLabelsInSearch = 500;

// What a search for a choice may take.
struct ChoiceEffort {
  size_t most_labels = kLabelsOfPlan;     // at once
  std::function<bool()> is_stopped = {};  // asked every few milliseconds
};

// Neither feasible nor optimal: the search ended before it found one.
struct PolicyChoice {
  bool is_feasible = false;
  bool is_optimal = true;
  // Layers of each policy of each offer.
  std::array<std::vector<int64_t>, 2> counts = {};
  double seconds = 0;
  double bound = 0;  // no choice takes less
};

// Sums of bytes in another order differ by less.
inline constexpr double kByteRounding = .01;

// Data: offers k (one or two kinds of layers) of n_k layers; policies p of kind k
//   with bytes b_p, seconds g_p of the GPU and h_p of the host; whole bytes w_k; f
//   microbatches in flight; room R and logits l.
// Variables: c_kp layers of each policy, integers >= 0, sum over p = n_k.
// Minimise max(sum g c, sum h c), as the host runs ahead of the GPU,
// subject to f sum b c + max(l, max over k of (w_k - max{b_p : c_kp > 0})) <= R:
//   of the layers of a kind those that keep most go back first, and what a layer
//   makes again is there beside what all keep.
// Layers of an offer without layers are left out. Where the search would take more
// than its effort, `bound` may be less than `seconds`.
PolicyChoice ChooseLayerPolicies(const std::array<LayerOffer, 2>& offers,
                                 const StageRoom& room,
                                 const ChoiceEffort& effort = {});

// Seconds that no choice goes below, but for rounding (the linear relaxation by each of both
// measures); infinite where nothing fits.
double LeastSeconds(const std::array<LayerOffer, 2>& offers,
                    const StageRoom& room);

}  // namespace acplan::costmodel
