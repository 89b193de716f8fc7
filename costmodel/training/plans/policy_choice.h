#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "costmodel/training/plans/layer_policies.h"

namespace acplan::costmodel {

// Equal layers of a stage, and the policies that they choose from.
struct LayerOffer {
  std::span<const LayerPolicy> policies = {};  // in ascending order of bytes
  // The lower hulls of (bytes, seconds), which linear relaxations walk.
  std::span<const size_t> gpu_hull = {};
  std::span<const size_t> host_hull = {};
  double whole_bytes = 0;  // for a layer and microbatch, all that is read
  int64_t layers = 0;
};

// Returns the policies on the lower hull of (bytes, seconds), by ascending bytes. The
// seconds are `share` of the GPU's plus the rest of the host's.
std::vector<size_t> LowerHull(std::span<const LayerPolicy> policies,
                              double share);

// The room of a stage for the tensors that its layers keep.
struct StageRoom {
  double in_flight = 1;  // microbatches
  double bytes = 0;      // without the bytes that do not depend on policies
  double logits = 0;     // the bytes that exist while no layer runs again
};

// The limits on labels at once, for a single choice, and for a choice within a search over
// many strategies, which first takes the quick ones.
inline constexpr size_t kLabelsOfPlan = 50'000;
inline constexpr size_t kLabelsInSearch = 500;

// The limits of a search for a choice.
struct ChoiceEffort {
  size_t most_labels = kLabelsOfPlan;     // at once
  std::function<bool()> is_stopped = {};  // called every few milliseconds
};

// The result of a choice. If it is neither feasible nor optimal, the search ended before it
// found one.
struct PolicyChoice {
  bool is_feasible = false;
  bool is_optimal = true;
  // The number of layers of each policy of each offer.
  std::array<std::vector<int64_t>, 2> counts = {};
  double seconds = 0;
  double bound = 0;  // no choice takes less
};

// Sums of the same bytes in different orders differ by less.
inline constexpr double kByteRounding = .01;

// Chooses a policy for each layer of a stage.
//
// Data: offers k (one or two kinds of layers) of n_k layers; policies p of kind k
//   with bytes b_p, seconds g_p of the GPU and h_p of the host; whole bytes w_k; f
//   microbatches in flight; room R and logits l.
// Variables: c_kp layers of each policy, integers >= 0, sum over p = n_k.
// Minimise max(sum g c, sum h c), since the host runs ahead of the GPU,
// subject to f sum b c + max(l, max over k of (w_k - max{b_p : c_kp > 0})) <= R:
//   among the layers of a kind the backward pass begins with those that keep most, and
//   the tensors that a layer recomputes are in addition to those that all layers keep.
//
// Layers of an offer without layers are left out. If the search would exceed its effort,
// `bound` may be less than `seconds`.
PolicyChoice ChooseLayerPolicies(const std::array<LayerOffer, 2>& offers,
                                 const StageRoom& room,
                                 const ChoiceEffort& effort = {});

// Returns seconds that no choice is below, apart from rounding (by the linear relaxation of
// each of the two measures); infinity if nothing fits.
double LeastSeconds(const std::array<LayerOffer, 2>& offers,
                    const StageRoom& room);

}  // namespace acplan::costmodel
