#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "costmodel/training/search/strategy_search.h"

namespace acplan::costmodel {

// The best `count` strategies by their rank. Among those of equal rank the one that was added first stays
// first.
class BestStrategies {
 public:
  // Constructs an empty list that takes no strategy of a rank above `cutoff`.
  explicit BestStrategies(
      size_t count, double cutoff = std::numeric_limits<double>::infinity())
      : count_(count), cutoff_(cutoff) {}

  bool MayTake(double rank) const { return rank <= Cutoff(); }
  double Cutoff() const {
    return best_.size() < count_ ? cutoff_
           : count_ > 0          ? std::min(cutoff_, best_.back().rank)
                                 : -std::numeric_limits<double>::infinity();
  }
  void Add(const RankedStrategy& ranked) {
    if (!MayTake(ranked.rank)) return;
    const auto is_better = [](const RankedStrategy& a,
                              const RankedStrategy& b) {
      return std::pair(a.rank, a.bytes) < std::pair(b.rank, b.bytes);
    };
    best_.insert(
        std::upper_bound(best_.begin(), best_.end(), ranked, is_better),
        ranked);
    if (best_.size() > count_) best_.pop_back();
  }
  std::vector<RankedStrategy> Take() { return std::move(best_); }

 private:
  size_t count_;
  double cutoff_;
  std::vector<RankedStrategy> best_ = {};
};

}  // namespace acplan::costmodel
