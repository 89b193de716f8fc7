#include "solver/labels/group_cover.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "solver/labels/convex_cost.h"

namespace acplan::solver {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Of the sum of all times, in ticks.
constexpr double kTicks = 0x1p50;
// What bounds in floating point may be wrong by, in ticks.
constexpr double kSlack = 1024;
constexpr size_t kManyTies = 16384;
constexpr int64_t kMostLabels = 1 << 27;

struct TickItem {
  int64_t bytes, ticks;
  double Slope() const {
    return static_cast<double>(ticks) / static_cast<double>(bytes);
  }
};

struct Label {
  int64_t bytes, ticks;
};
using Labels = std::vector<Label>;  // both strictly ascending

// What neither `labels` nor they with the item beat; in the given memory, which
// serves every time.
std::span<Label> WithOrWithout(const Labels& labels, const TickItem& item,
                               Labels& memory) {
  if (memory.size() < 2 * labels.size()) memory.resize(3 * labels.size());
  size_t end = memory.size();
  size_t i = labels.size();
  size_t j = labels.size();
  int64_t least = std::numeric_limits<int64_t>::max();
  while (i > 0 || j > 0) {
    const int64_t with = j > 0 ? labels[j - 1].bytes + item.bytes
                               : std::numeric_limits<int64_t>::min();
    const int64_t without =
        i > 0 ? labels[i - 1].bytes : std::numeric_limits<int64_t>::min();
    Label next;
    if (with > without || (with == without && labels[j - 1].ticks + item.ticks <
                                                  labels[i - 1].ticks)) {
      next = {with, labels[j - 1].ticks + item.ticks};
      --j;
    } else {
      next = labels[i - 1];
      --i;
    }
    if (next.ticks < least) {
      least = next.ticks;
      memory[--end] = next;
    }
  }
  return std::span(memory).subspan(end);
}

std::vector<CostSegment> Sorted(const std::vector<TickItem>& items) {
  std::vector<CostSegment> segments;
  segments.reserve(items.size());
  for (const TickItem& item : items) {
    segments.push_back({item.bytes, item.Slope()});
  }
  std::ranges::sort(segments, {}, &CostSegment::slope);
  return segments;
}

// The items that are worth a decision, and what is known of the answer.
class Search {
 public:
  Search(std::vector<TickItem> items, int64_t need, const SearchLimits& limits)
      : items_(std::move(items)), need_(need), limits_(limits) {
    relaxed_ = ConvexCost::Free(0).Plus(Sorted(items_));
    bound_ = relaxed_.At(need_);
    RoundTheRelaxation();
  }

  // The items to take.
  std::vector<char> Run() {
    constexpr std::array<size_t, 4> kWidths = {
        64, 1024, kManyTies, std::numeric_limits<size_t>::max()};
    for (const size_t width : kWidths) {
      RunPass(width);
      if (stopped_by_ != StoppedBy::kNothing || is_complete_) break;
      if (width >= kManyTies &&
          bound_ + kSlack >= static_cast<double>(best_ticks_)) {
        is_complete_ = true;
        break;
      }
    }
    return best_;
  }

  bool is_complete() const { return is_complete_; }
  StoppedBy stopped_by() const { return stopped_by_; }
  double bound_ticks() const { return bound_; }
  int64_t labels() const { return labels_; }

 private:
  // The cheapest bytes first, then what turns out not to be needed is left.
  void RoundTheRelaxation() {
    std::vector<int> order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](int i) { return items_[i].Slope(); });
    best_.assign(items_.size(), 0);
    best_ticks_ = 0;
    int64_t bytes = 0;
    for (const int i : order) {
      if (bytes >= need_) break;
      best_[i] = 1;
      bytes += items_[i].bytes;
      best_ticks_ += items_[i].ticks;
    }
    std::ranges::reverse(order);
    for (const int i : order) {
      if (best_[i] && bytes - items_[i].bytes >= need_) {
        best_[i] = 0;
        bytes -= items_[i].bytes;
        best_ticks_ -= items_[i].ticks;
      }
    }
  }

  void RunPass(size_t width) {
    labels_kept_ = 0;
    // Each item on the side of the relaxation unless the other side may do.
    const double price = ConvexCost::Reader(relaxed_).SlopeAt(need_);
    std::vector<char> take(items_.size(), 0);
    std::vector<int> open;
    std::vector<TickItem> open_items;
    int64_t taken_bytes = 0;
    int64_t taken_ticks = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      const double reduced = static_cast<double>(items_[i].ticks) -
                             price * static_cast<double>(items_[i].bytes);
      if (bound_at_root() + std::abs(reduced) <= Threshold()) {
        open.push_back(static_cast<int>(i));
        open_items.push_back(items_[i]);
      } else if (reduced < 0) {
        take[i] = 1;
        taken_bytes += items_[i].bytes;
        taken_ticks += items_[i].ticks;
      }
    }

    const size_t n = open.size();
    std::vector<ConvexCost> before(n + 1);  // bounds for the items before
    before[0] = ConvexCost::Free(0);
    for (size_t k = 0; k < n; ++k) {
      before[k + 1] =
          before[k].Plus({{open_items[k].bytes, open_items[k].Slope()}});
    }
    std::vector<Labels> after(n + 1);
    after[n] = {{taken_bytes, taken_ticks}};
    is_complete_ = true;
    double least_dropped = kInf;
    for (size_t k = n; k-- > 0;) {
      std::span<Label> labels =
          WithOrWithout(after[k + 1], open_items[k], memory_);
      labels_ += std::ssize(labels);
      const auto [kept, dropped] = Prune(before[k], width, labels);
      after[k].assign(labels.begin(), labels.begin() + kept);
      labels_kept_ += kept;
      least_dropped = std::min(least_dropped, dropped);
      stopped_by_ = Stop();
      if (stopped_by_ != StoppedBy::kNothing) {
        is_complete_ = false;
        return;
      }
    }
    is_complete_ = least_dropped == kInf;
    const auto found =
        std::ranges::lower_bound(after[0], need_, {}, &Label::bytes);
    if (found != after[0].end() && found->ticks <= best_ticks_) {
      best_ticks_ = found->ticks;
      Label rest = *found;
      for (size_t k = 0; k < n; ++k) {
        const auto without = std::ranges::lower_bound(after[k + 1], rest.bytes,
                                                      {}, &Label::bytes);
        const bool leaves =
            without != after[k + 1].end() && without->ticks <= rest.ticks;
        take[open[k]] = leaves ? 0 : 1;
        if (!leaves) {
          rest.bytes -= open_items[k].bytes;
          rest.ticks -= open_items[k].ticks;
        }
      }
      best_ = std::move(take);
    }
    bound_ = std::max(
        bound_, std::min(static_cast<double>(best_ticks_), least_dropped));
  }

  double bound_at_root() const { return relaxed_.At(need_); }
  double Threshold() const { return static_cast<double>(best_ticks_) + kSlack; }

  struct Pruned {
    ptrdiff_t kept;
    double least_dropped;
  };
  // Moves to the front what can lead to an answer as good as the best; beyond
  // the width, what promises most, with the least bound on the others.
  Pruned Prune(const ConvexCost& rest, size_t width, std::span<Label> labels) {
    bounds_.clear();
    ConvexCost::Reader reader(rest);
    ptrdiff_t kept = 0;
    for (const Label& label : labels) {
      const double bound =
          static_cast<double>(label.ticks) + reader.At(need_ - label.bytes);
      if (bound > Threshold()) continue;
      bounds_.push_back(bound);
      labels[kept++] = label;
      if (label.bytes >= need_) break;
    }
    if (static_cast<size_t>(kept) <= width) return {kept, kInf};
    std::vector<double> ranked = bounds_;
    std::nth_element(ranked.begin(),
                     ranked.begin() + static_cast<ptrdiff_t>(width),
                     ranked.end());
    const double limit = ranked[width];
    auto ties =
        static_cast<ptrdiff_t>(width) -
        std::ranges::count_if(bounds_, [&](double b) { return b < limit; });
    kept = 0;
    for (size_t k = 0; k < bounds_.size(); ++k) {
      if (bounds_[k] < limit || (bounds_[k] == limit && ties-- > 0)) {
        labels[kept++] = labels[k];
      }
    }
    return {kept, limit};
  }

  StoppedBy Stop() const {
    if (limits_.interrupted && limits_.interrupted->load()) {
      return StoppedBy::kInterrupt;
    }
    if (stopwatch_.Seconds() > limits_.time_limit_s) return StoppedBy::kTime;
    if (labels_ > limits_.node_limit) return StoppedBy::kNodes;
    if (labels_kept_ > kMostLabels) return StoppedBy::kMemory;
    return StoppedBy::kNothing;
  }

  std::vector<TickItem> items_;
  int64_t need_;
  const SearchLimits& limits_;
  Stopwatch stopwatch_;
  ConvexCost relaxed_;
  double bound_ = 0;  // ticks
  std::vector<char> best_;
  int64_t best_ticks_ = 0;
  int64_t labels_ = 0;
  int64_t labels_kept_ = 0;  // in this pass
  Labels memory_;
  std::vector<double> bounds_;
  bool is_complete_ = false;
  StoppedBy stopped_by_ = StoppedBy::kNothing;
};

}  // namespace

Cover LeastCover(const std::vector<CoverItem>& items, int64_t need,
                 const SearchLimits& limits) {
  Cover cover;
  double total_ms = 0;
  for (const CoverItem& item : items) total_ms += item.ms;
  // A power of two keeps exact ties exact.
  const double scale =
      total_ms > 0 ? std::exp2(std::floor(std::log2(kTicks / total_ms))) : 1;

  std::vector<char> take(items.size(), 0);
  std::vector<int> open;
  std::vector<TickItem> open_items;
  int64_t free_bytes = 0;
  int64_t most = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes == 0) continue;
    most += items[i].bytes;
    const int64_t ticks = std::llround(items[i].ms * scale);
    if (ticks == 0) {
      take[i] = 1;
      free_bytes += items[i].bytes;
    } else {
      open.push_back(static_cast<int>(i));
      open_items.push_back({items[i].bytes, ticks});
    }
  }
  if (most < need) {
    cover.status = SearchStatus::kInfeasible;
    cover.bound_ms = kInf;
    return cover;
  }

  bool is_complete = true;
  if (need > free_bytes) {
    Search search(open_items, need - free_bytes, limits);
    const std::vector<char> chosen = search.Run();
    for (size_t k = 0; k < open.size(); ++k) take[open[k]] = chosen[k];
    is_complete = search.is_complete();
    cover.stopped_by = search.stopped_by();
    cover.bound_ms = search.bound_ticks() / scale;
    cover.labels = search.labels();
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (!take[i]) continue;
    cover.bytes += items[i].bytes;
    cover.ms += items[i].ms;
  }
  cover.take = std::move(take);
  cover.status = is_complete ? SearchStatus::kOptimal : SearchStatus::kFeasible;
  cover.bound_ms = is_complete ? cover.ms : std::min(cover.bound_ms, cover.ms);
  return cover;
}

}  // namespace acplan::solver
