// A knapsack with many equal items and two measures of time.
//
// The bytes that a layer recomputes in its backward pass depend on the layer that keeps
// most. So the problem is solved for each bound t on max(l, w - max b): then each kind
// requires one policy with b >= w - t, and the others have (R - t) / f bytes. Each of these
// problems is a restriction of the original, and one of them contains the optimum.
//
// Bound. For a share s of the GPU's and 1 - s of the host's seconds and a price m of a
// byte, each kind of layer has a cheapest policy by c = s g + (1 - s) h + m b. Let C be the
// sum of these costs: then max(G, H) >= s G + (1 - s) H >= C - m x room. For a given s the
// best m is the slope of the lower hull where the room ends; s is found by golden section
// (any s is valid). A policy's excess is its c minus that of the cheapest, so a choice
// costs at least the bound plus the excesses of all its layers (label_search.cc).
//
// Order. Bounds t ascend, and so do the relaxations' bounds without the rule that each kind has
// a large policy: the first that is no better than the best choice ends the search. A first pass
// takes only the first choice of each t, as a cutoff for all: no t whose choices are slower is
// searched.
#include "costmodel/training/plans/policy_choice.h"

#include <algorithm>
#include <optional>

#include "costmodel/training/plans/label_search.h"
#include "costmodel/training/plans/policy_relaxation.h"

namespace acplan::costmodel {
namespace {

using Offers = std::array<LayerOffer, 2>;

// Returns all bounds on recomputed bytes that some policy can meet.
std::vector<double> BoundsOfWorking(const Offers& offers, double logits) {
  std::vector<double> bounds;
  for (const LayerOffer& offer : offers) {
    if (offer.layers == 0) continue;
    for (const LayerPolicy& policy : offer.policies) {
      bounds.push_back(std::max(logits, offer.whole_bytes - policy.bytes));
    }
  }
  std::ranges::sort(bounds);
  bounds.erase(std::ranges::unique(bounds).begin(), bounds.end());
  return bounds;
}

// Returns whether each kind has a policy that meets the bound.
bool HasPolicyWithin(const Offers& offers, double working) {
  return std::ranges::all_of(offers, [&](const LayerOffer& offer) {
    return offer.layers == 0 || offer.policies.back().bytes >=
                                    offer.whole_bytes - working - kByteRounding;
  });
}

// Returns the rooms of all bounds that some choice meets, by ascending bounds.
std::vector<ChoiceRoom> RoomsOfBounds(const Offers& offers,
                                      const StageRoom& room) {
  std::vector<ChoiceRoom> rooms;
  for (const double working : BoundsOfWorking(offers, room.logits)) {
    if (!HasPolicyWithin(offers, working)) continue;
    const double bytes = room.bytes + kByteRounding - working;
    rooms.push_back({bytes / room.in_flight, working});
  }
  return rooms;
}

// Returns seconds that the best choice is below; infinity if no first choice fits.
double Cutoff(const Offers& offers, std::span<const ChoiceRoom> rooms,
              double share, const ChoiceEffort& effort) {
  // The seconds of the least kept bytes: bounds are rounded relative to them. More than 0.
  double most = 1e-9;
  for (const LayerOffer& offer : offers) {
    if (offer.layers == 0) continue;
    const LayerPolicy& policy = offer.policies.front();
    most += static_cast<double>(offer.layers) * (policy.gpu + policy.host);
  }
  double least = kNever;
  for (const ChoiceRoom& room : rooms) {
    LabelSearch search(offers, share, room, effort);
    if (search.Bound() >= least) break;
    if (search.BoundHere() < least) {
      least = std::min(least, search.FirstChoice());
    }
  }
  // Slightly more, so that the choice itself is found again, even if it takes no time.
  return least + 1e-9 * most;
}

}  // namespace

PolicyChoice ChooseLayerPolicies(const Offers& stated, const StageRoom& room,
                                 const ChoiceEffort& effort) {
  // If the host never takes longer, its seconds would only distinguish labels needlessly.
  Offers offers = stated;
  std::array<std::vector<LayerPolicy>, 2> without_host;
  if (TakesLonger(offers, true)) {
    for (size_t kind = 0; kind < 2; ++kind) {
      without_host[kind].assign(offers[kind].policies.begin(),
                                offers[kind].policies.end());
      for (LayerPolicy& policy : without_host[kind]) policy.host = 0;
      offers[kind].policies = without_host[kind];
    }
  }
  PolicyChoice best{.seconds = kNever, .bound = kNever};
  if (offers[0].layers + offers[1].layers == 0) {
    if (room.logits > room.bytes + kByteRounding) return best;
    return {.is_feasible = true};
  }
  const std::vector<ChoiceRoom> rooms = RoomsOfBounds(offers, room);
  if (rooms.empty()) return best;
  const double share = BestShare(offers, rooms.front().bytes);
  const double cutoff = Cutoff(offers, rooms, share, effort);
  for (const ChoiceRoom& with_bound : rooms) {
    LabelSearch search(offers, share, with_bound, effort);
    const double most = std::min(cutoff, best.seconds);
    if (search.Bound() >= most * (1 - kTimeRounding)) break;
    if (search.BoundHere() >= most * (1 - kTimeRounding)) continue;
    const bool is_complete = search.Run(most);
    const double open_bound =
        is_complete ? best.bound : std::min(best.bound, search.BoundHere());
    const bool is_optimal = best.is_optimal && is_complete;
    if (search.HasFound()) best = search.Best();
    best.bound = open_bound;
    best.is_optimal = is_optimal;
  }
  // A bound that was not searched to its end may still show that nothing is better.
  if (best.bound >= best.seconds * (1 - kTimeRounding)) {
    best.bound = best.seconds;
    best.is_optimal = true;
  }
  return best;
}

}  // namespace acplan::costmodel
