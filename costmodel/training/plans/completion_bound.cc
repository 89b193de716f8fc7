// Idea. For a share s and a price m, a choice costs s G + (1 - s) H + m b, and no choice takes
// less than the sum of its layers' costs minus m x room (policy_choice.cc). The layers of a
// label have their costs; of the others, one must be large if none is so far, and costs at
// least as much as the cheapest large policy, and the rest as much as the cheapest policy of
// all. The best m is the price of the relaxation in which one layer of each kind is large.
// (The search orders policies by the price of the relaxation without that rule.)
#include "costmodel/training/plans/completion_bound.h"

#include <algorithm>
#include <limits>

#include "costmodel/training/plans/policy_relaxation.h"

namespace acplan::costmodel {

CompletionBound::CompletionBound(const std::array<LayerOffer, 2>& offers,
                                 double share, ChoiceRoom room)
    : offers_(offers), share_(share) {
  for (size_t kind = 0; kind < 2; ++kind) {
    const LayerOffer& offer = offers[kind];
    if (offer.layers == 0) continue;
    const double least = offer.whole_bytes - room.working - kByteRounding;
    size_t& first = first_large_[kind];
    while (!(offer.policies[first].bytes >= least)) ++first;
  }
  const Relaxation relaxed =
      RelaxWithLarge(offers, first_large_, share, room.bytes);
  price_ = relaxed.price;
  seconds_ = relaxed.seconds;
  room_cost_ = price_ * room.bytes;
}

void CompletionBound::SetSteps(std::span<const ChoiceStep> steps) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  costs_.resize(steps.size());
  double later_kinds = 0;
  Costs costs;
  for (size_t i = steps.size(); i-- > 0;) {
    const ChoiceStep& step = steps[i];
    if (step.is_last) {
      costs = {kNone, kNone};
      later_kinds_[step.kind] = later_kinds;
    }
    const LayerPolicy& policy = offers_[step.kind].policies[step.policy];
    const double cost = share_ * policy.gpu + (1 - share_) * policy.host +
                        price_ * policy.bytes;
    costs.least = std::min(costs.least, cost);
    if (step.policy >= first_large_[step.kind]) {
      costs.large = std::min(costs.large, cost);
    }
    costs_[i] = costs;
    if (i > 0 && steps[i - 1].kind != step.kind) {
      const auto layers = static_cast<double>(offers_[step.kind].layers);
      later_kinds = (layers - 1) * costs.least + costs.large;
    }
  }
}

double CompletionBound::Bound(const ChoiceLabel& label, size_t kind,
                              size_t next) const {
  const double sum = share_ * label.gpu + (1 - share_) * label.host +
                     price_ * label.bytes - room_cost_ + later_kinds_[kind];
  if (label.open_layers == 0) {
    return label.has_large ? sum : std::numeric_limits<double>::infinity();
  }
  const Costs& costs = costs_[next];
  const auto layers = static_cast<double>(label.open_layers);
  return sum + (label.has_large ? layers * costs.least
                                : (layers - 1) * costs.least + costs.large);
}

}  // namespace acplan::costmodel
