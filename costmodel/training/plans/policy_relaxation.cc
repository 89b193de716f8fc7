// The linear relaxation of a knapsack of layers. All layers begin with the policy that
// keeps least, and move along the lower hulls of their policies, the steepest edge of all
// first, until the room ends. The price of a byte is the slope of the edge where that
// happens.
#include "costmodel/training/plans/policy_relaxation.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

using Offers = std::array<LayerOffer, 2>;

// A walk along the hulls of both kinds together, the steepest edge first.
class HullWalk {
 public:
  HullWalk(const Offers& offers, double share,
           const std::array<std::span<const size_t>, 2>& hulls)
      : offers_(offers), share_(share), hulls_(hulls) {}

  Relaxation Run(double room) const;

 private:
  double Cost(const LayerOffer& offer, size_t policy) const {
    const LayerPolicy& p = offer.policies[policy];
    return share_ * p.gpu + (1 - share_) * p.host;
  }
  // Returns the seconds that another byte saves from this step of the hull on; 0 at its
  // end.
  double Price(size_t kind, size_t step) const;

  const Offers& offers_;
  double share_;
  std::array<std::span<const size_t>, 2> hulls_;
};

double HullWalk::Price(size_t kind, size_t step) const {
  const LayerOffer& offer = offers_[kind];
  if (offer.layers == 0 || step + 1 >= hulls_[kind].size()) return 0;
  const size_t small = hulls_[kind][step];
  const size_t large = hulls_[kind][step + 1];
  return (Cost(offer, small) - Cost(offer, large)) /
         (offer.policies[large].bytes - offer.policies[small].bytes);
}

Relaxation HullWalk::Run(double room) const {
  Relaxation relaxed{.seconds = 0};
  for (size_t kind = 0; kind < 2; ++kind) {
    const LayerOffer& offer = offers_[kind];
    if (offer.layers == 0) continue;
    const double layers = static_cast<double>(offer.layers);
    room -= layers * offer.policies.front().bytes;
    relaxed.seconds += layers * Cost(offer, hulls_[kind].front());
  }
  if (room < 0) return {};
  std::array<size_t, 2> step = {0, 0};
  while (true) {
    const std::array<double, 2> prices = {Price(0, step[0]), Price(1, step[1])};
    const size_t kind = prices[1] > prices[0] ? 1 : 0;
    if (prices[kind] <= 0) return relaxed;
    const LayerOffer& offer = offers_[kind];
    const std::span<const size_t> hull = hulls_[kind];
    const double bytes = static_cast<double>(offer.layers) *
                         (offer.policies[hull[step[kind] + 1]].bytes -
                          offer.policies[hull[step[kind]]].bytes);
    relaxed.seconds -= prices[kind] * std::min(bytes, room);
    if (bytes > room) {
      relaxed.price = prices[kind];
      return relaxed;
    }
    room -= bytes;
    ++step[kind];
  }
}

}  // namespace

std::vector<size_t> LowerHull(std::span<const LayerPolicy> policies,
                              double share) {
  const auto cost = [&](size_t i) {
    return share * policies[i].gpu + (1 - share) * policies[i].host;
  };
  std::vector<size_t> hull;
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!hull.empty() && cost(i) >= cost(hull.back())) continue;
    if (!hull.empty() && policies[i].bytes == policies[hull.back()].bytes) {
      hull.pop_back();
    }
    while (hull.size() >= 2) {
      const size_t a = hull[hull.size() - 2];
      const size_t b = hull.back();
      if ((cost(b) - cost(a)) * (policies[i].bytes - policies[a].bytes) <
          (cost(i) - cost(a)) * (policies[b].bytes - policies[a].bytes)) {
        break;
      }
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

Relaxation RelaxAt(const Offers& offers, double share, double room) {
  std::array<std::vector<size_t>, 2> hulls;
  for (size_t kind = 0; kind < 2; ++kind) {
    if (offers[kind].layers > 0) {
      hulls[kind] = LowerHull(offers[kind].policies, share);
    }
  }
  Relaxation relaxed = HullWalk(offers, share, {hulls[0], hulls[1]}).Run(room);
  relaxed.share = share;
  return relaxed;
}

double LeastSeconds(const Offers& offers, const StageRoom& room) {
  const double bytes =
      (room.bytes + kByteRounding - room.logits) / room.in_flight;
  return std::max(
      HullWalk(offers, 1, {offers[0].gpu_hull, offers[1].gpu_hull})
          .Run(bytes)
          .seconds,
      HullWalk(offers, 0, {offers[0].host_hull, offers[1].host_hull})
          .Run(bytes)
          .seconds);
}

}  // namespace acplan::costmodel
