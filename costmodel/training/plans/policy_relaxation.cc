// The linear relaxation of a knapsack of layers. All layers begin with the policy that
// keeps least, and move along the lower hulls of their policies, the steepest edge of all
// first, until the room ends. The price of a byte is the slope of the edge where that
// happens.
#include "costmodel/training/plans/policy_relaxation.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

using Offers = std::array<LayerOffer, 2>;

// A walk along the hulls of all offers together, the steepest edge first.
template <size_t kOffers>
class HullWalk {
 public:
  HullWalk(const std::array<LayerOffer, kOffers>& offers, double share,
           const std::array<std::span<const size_t>, kOffers>& hulls)
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

  const std::array<LayerOffer, kOffers>& offers_;
  double share_;
  std::array<std::span<const size_t>, kOffers> hulls_;
};

template <size_t kOffers>
double HullWalk<kOffers>::Price(size_t kind, size_t step) const {
  const LayerOffer& offer = offers_[kind];
  if (offer.layers == 0 || step + 1 >= hulls_[kind].size()) return 0;
  const size_t small = hulls_[kind][step];
  const size_t large = hulls_[kind][step + 1];
  return (Cost(offer, small) - Cost(offer, large)) /
         (offer.policies[large].bytes - offer.policies[small].bytes);
}

template <size_t kOffers>
Relaxation HullWalk<kOffers>::Run(double room) const {
  Relaxation relaxed{.seconds = 0};
  for (size_t kind = 0; kind < kOffers; ++kind) {
    const LayerOffer& offer = offers_[kind];
    if (offer.layers == 0) continue;
    const double layers = static_cast<double>(offer.layers);
    room -= layers * offer.policies.front().bytes;
    relaxed.seconds += layers * Cost(offer, hulls_[kind].front());
  }
  if (room < 0) return {};
  std::array<size_t, kOffers> step = {};
  while (true) {
    std::array<double, kOffers> prices;
    for (size_t kind = 0; kind < kOffers; ++kind) {
      prices[kind] = Price(kind, step[kind]);
    }
    const auto kind = static_cast<size_t>(
        std::max_element(prices.begin(), prices.end()) - prices.begin());
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

template <size_t kOffers>
Relaxation Relax(const std::array<LayerOffer, kOffers>& offers, double share,
                 double room) {
  std::array<std::vector<size_t>, kOffers> hulls;
  std::array<std::span<const size_t>, kOffers> spans;
  for (size_t kind = 0; kind < kOffers; ++kind) {
    if (offers[kind].layers == 0) continue;
    hulls[kind] = LowerHull(offers[kind].policies, share);
    spans[kind] = hulls[kind];
  }
  Relaxation relaxed = HullWalk(offers, share, spans).Run(room);
  relaxed.share = share;
  return relaxed;
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
  return Relax(offers, share, room);
}

Relaxation RelaxWithLarge(const Offers& offers,
                          const std::array<size_t, 2>& first_large,
                          double share, double room) {
  std::array<LayerOffer, 4> parts = {offers[0], offers[1], {}, {}};
  for (size_t kind = 0; kind < 2; ++kind) {
    if (offers[kind].layers == 0) continue;
    --parts[kind].layers;
    parts[2 + kind] = {
        .policies = offers[kind].policies.subspan(first_large[kind]),
        .layers = 1};
  }
  return Relax(parts, share, room);
}

bool TakesLonger(const Offers& offers, bool is_gpu) {
  return std::ranges::all_of(offers, [&](const LayerOffer& offer) {
    return offer.layers == 0 ||
           std::ranges::all_of(offer.policies, [&](const LayerPolicy& policy) {
             return is_gpu ? policy.gpu >= policy.host
                           : policy.host >= policy.gpu;
           });
  });
}

double BestShare(const Offers& offers, double room) {
  if (TakesLonger(offers, true)) return 1;
  if (TakesLonger(offers, false)) return 0;
  constexpr double kGolden = .6180339887498949;
  double low = 0;
  double high = 1;
  for (int i = 0; i < 40; ++i) {
    const double left_share = high - kGolden * (high - low);
    const double right_share = low + kGolden * (high - low);
    const bool is_left = RelaxAt(offers, left_share, room).seconds >
                         RelaxAt(offers, right_share, room).seconds;
    (is_left ? high : low) = is_left ? right_share : left_share;
  }
  const double middle = (low + high) / 2;
  double best = middle;
  for (const double share : {0.0, 1.0}) {
    if (RelaxAt(offers, share, room).seconds >=
        RelaxAt(offers, best, room).seconds) {
      best = share;
    }
  }
  return best;
}

double LeastSeconds(const Offers& offers, const StageRoom& room) {
  const double bytes =
      (room.bytes + kByteRounding - room.logits) / room.in_flight;
  return std::max(
      HullWalk<2>(offers, 1, {offers[0].gpu_hull, offers[1].gpu_hull})
          .Run(bytes)
          .seconds,
      HullWalk<2>(offers, 0, {offers[0].host_hull, offers[1].host_hull})
          .Run(bytes)
          .seconds);
}

}  // namespace acplan::costmodel
