#include "problems/remat/price_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "solver/infinity.h"
#include "solver/price_planes.h"

// Idea. Each path is a plane: its ms and, times prices, its bytes over the
// room. The bound, as a function of prices, is the lowest plane, which a
// shortest path finds. Cutting planes: a small program over the planes so far
// (solver/price_planes.h) finds the prices at which the lowest of them is
// highest, and the next path is the cheapest one there. The search ends when
// the bound of that path is as high. The program's dual is the best mixture. As
// long as no mixture keeps the room, the missing room has a price, which rises:
// if the bound then exceeds the cost of every path, there is no such mixture.

namespace acplan::problems {

using solver::kInfinity;

namespace {

constexpr double kNear = 1e-7;         // bound and planes, relative
constexpr double kSumRounding = 1e-9;  // of sums, relative
constexpr double kFirstPrice = 10;     // of missing room, relative to all ms
constexpr double kLastPrice = 1e9;

class PriceSearch {
 public:
  explicit PriceSearch(const PriceQuestion& question)
      : question_(question),
        graph_(question.graph),
        scale_(
            static_cast<double>(std::max<int64_t>(question.scale_bytes, 1))) {}

  PriceAnswer Run() {
    double price_of_missing = kFirstPrice * question_.all_ms + 1;
    const double last_price = kLastPrice * (question_.all_ms + 1);
    std::vector<double> prices(graph_.rows.size(), 0);
    for (;;) {
      const bool is_better = Try(prices);
      if (is_closed_) break;
      if (question_.is_stopped()) {
        answer_.is_stopped = true;
        break;
      }
      const std::optional<solver::HighestPoint> highest =
          solver::FindHighestPoint(planes_, graph_.rows.size(),
                                   price_of_missing);
      if (!highest) break;
      const double near =
          highest->height - kNear * std::max(question_.all_ms, highest->height);
      const bool is_end = !is_better || bound_ >= near;
      prices = highest->prices;
      if (!is_end) continue;
      if (highest->missing > kSumRounding && price_of_missing < last_price) {
        price_of_missing *= 100;
        bound_ = -kInfinity;
        continue;
      }
      for (size_t p = 0; p < planes_.size(); ++p)
        if (highest->shares[p] > kSumRounding)
          answer_.mixture.push_back(static_cast<int64_t>(p));
      break;
    }
    return std::move(answer_);
  }

 private:
  // Tries the cheapest path at these prices. Returns whether it is new, or the
  // bound higher.
  bool Try(const std::vector<double>& prices) {
    std::vector<double> of_bytes;
    double of_room = 0;
    for (size_t row = 0; row < prices.size(); ++row) {
      of_bytes.push_back(prices[row] / scale_);
      of_room += of_bytes[row] * static_cast<double>(graph_.room[row]);
    }
    const LevelValues rests = CheapestRests(graph_, of_bytes);
    ++answer_.cuts;
    const double cheapest = rests.front().front();
    const bool is_higher = cheapest - of_room > bound_;
    if (is_higher) {
      bound_ = cheapest - of_room;
      answer_.prices = of_bytes;
      const double rounding =
          kSumRounding * (std::abs(cheapest) + std::abs(of_room));
      is_closed_ = question_.on_bound(bound_ - rounding);
    }
    const DecisionPath path = CheapestPath(graph_, of_bytes, rests);
    solver::PricePlane plane = PlaneOf(path);
    const bool is_new = std::ranges::find(planes_, plane) == planes_.end();
    if (is_new) {
      planes_.push_back(std::move(plane));
      question_.on_path(path);
    }
    return is_higher || is_new;
  }

  // Returns the plane of a path. The excess of a row is bytes over the room,
  // divided by the scale.
  solver::PricePlane PlaneOf(const DecisionPath& path) const {
    const PathSums sums = SumsOf(graph_, path);
    solver::PricePlane plane{.cost = sums.ms};
    for (size_t row = 0; row < sums.bytes.size(); ++row) {
      plane.excess.push_back(
          static_cast<double>(sums.bytes[row] - graph_.room[row]) / scale_);
    }
    return plane;
  }

  const PriceQuestion& question_;
  const DecisionGraph& graph_;
  const double scale_;
  std::vector<solver::PricePlane> planes_;
  double bound_ = -kInfinity;
  bool is_closed_ = false;
  PriceAnswer answer_;
};

}  // namespace

PriceAnswer FindPrices(const PriceQuestion& question) {
  return PriceSearch(question).Run();
}

}  // namespace acplan::problems
