#include "solver/labels/group_cover.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "solver/infinity.h"
#include "solver/labels/convex_cost.h"

// A knapsack: labels (bytes, ticks) over the items, added one by one, that no other label
// beats. Most items are never decided. The relaxation, the cheapest bytes first, is a lower
// bound, and the slope at its end is the price of a byte. At that price each item has a
// reduced cost, |t - price m|: an answer that puts the item on the other side than the
// relaxation does costs at least that much more than the relaxation. An item whose reduced
// cost exceeds the difference between the best known answer and the bound is settled, since
// no better answer has it on the other side.
//
// The open items are added from the last to the first, so that the lists of remaining
// labels, one for each item, yield the first one of the best answers in lexicographic
// order: going through the items in order, an item is left out if the list behind it has a
// label that suffices without it.
//
// A label is dropped if its ticks and the relaxation of the items before it exceed the best
// answer. The first passes keep few labels, those with the least bounds. Such a pass finds
// answers, and its bound is the least bound of the labels that it dropped because of its
// width. A pass that dropped no label because of its width has found the optimum. Times are
// whole ticks, so ties are exact; bounds are not whole, so they get slack.

namespace acplan::solver {

namespace {

// The sum of all times is about this many ticks.
constexpr double kTicks = 0x1p50;
// Bounds in floating point may be wrong by this many ticks.
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

// Returns the labels, with and without the item, that no other one of them beats. They are
// at the end of `memory`, which is reused by every call.
std::span<Label> WithOrWithout(const Labels& labels, const TickItem& item,
                               Labels& memory) {
  if (memory.size() < 2 * labels.size()) memory.resize(3 * labels.size());
  size_t end = memory.size();
  size_t i = labels.size();
  size_t j = labels.size();
  int64_t least = std::numeric_limits<int64_t>::max();
  while (i > 0 || j > 0) {
    const int64_t bytes_with = j > 0 ? labels[j - 1].bytes + item.bytes
                                     : std::numeric_limits<int64_t>::min();
    const int64_t bytes_without =
        i > 0 ? labels[i - 1].bytes : std::numeric_limits<int64_t>::min();
    Label next;
    if (bytes_with > bytes_without ||
        (bytes_with == bytes_without &&
         labels[j - 1].ticks + item.ticks < labels[i - 1].ticks)) {
      next = {bytes_with, labels[j - 1].ticks + item.ticks};
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

// The items that need a decision.
struct Problem {
  Problem(std::vector<TickItem> tick_items, int64_t need_bytes)
      : items(std::move(tick_items)),
        need(need_bytes),
        relaxed(ConvexCost::Free(0).Plus(Sorted(items))),
        root_bound(relaxed.At(need)) {}

  std::vector<TickItem> items;
  int64_t need;
  ConvexCost relaxed;
  double root_bound;  // ticks
};

struct Answer {
  std::vector<char> take;  // indexed by item
  int64_t ticks = 0;
};

// Returns the answer that takes the cheapest bytes first, and then leaves out the items
// that turn out not to be needed.
Answer RoundedRelaxation(const Problem& problem) {
  const std::vector<TickItem>& items = problem.items;
  std::vector<int> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int i) { return items[i].Slope(); });
  Answer answer = {.take = std::vector<char>(items.size(), 0)};
  int64_t bytes = 0;
  for (const int i : order) {
    if (bytes >= problem.need) break;
    answer.take[i] = 1;
    bytes += items[i].bytes;
    answer.ticks += items[i].ticks;
  }
  std::ranges::reverse(order);
  for (const int i : order) {
    if (answer.take[i] && bytes - items[i].bytes >= problem.need) {
      answer.take[i] = 0;
      bytes -= items[i].bytes;
      answer.ticks -= items[i].ticks;
    }
  }
  return answer;
}

// The settled items, each on the side where the relaxation has it. The open items are those
// whose other side may lead to an answer within the threshold.
struct Settled {
  std::vector<char> take;     // indexed by item, open ones left out
  Label taken_sums = {0, 0};  // the sums of the items taken
  std::vector<int> open;      // items
  std::vector<TickItem> open_items;
};

Settled Settle(const Problem& problem, double threshold) {
  const double price =
      ConvexCost::Reader(problem.relaxed).SlopeAt(problem.need);
  Settled settled;
  settled.take.assign(problem.items.size(), 0);
  for (size_t i = 0; i < problem.items.size(); ++i) {
    const TickItem& item = problem.items[i];
    const double reduced = static_cast<double>(item.ticks) -
                           price * static_cast<double>(item.bytes);
    if (problem.root_bound + std::abs(reduced) <= threshold) {
      settled.open.push_back(static_cast<int>(i));
      settled.open_items.push_back(item);
    } else if (reduced < 0) {
      settled.take[i] = 1;
      settled.taken_sums.bytes += item.bytes;
      settled.taken_sums.ticks += item.ticks;
    }
  }
  return settled;
}

// Returns, for every open item and for the end, the relaxation of the items before it.
std::vector<ConvexCost> RelaxedBefore(const std::vector<TickItem>& items) {
  std::vector<ConvexCost> before(items.size() + 1);
  before[0] = ConvexCost::Free(0);
  for (size_t k = 0; k < items.size(); ++k) {
    before[k + 1] = before[k].Plus({{items[k].bytes, items[k].Slope()}});
  }
  return before;
}

// Returns the first one of the answers that the label `answer_label` of lists[0] stands for.
Answer ReadOff(Settled settled, const std::vector<Labels>& lists,
               const Label& answer_label) {
  Label rest = answer_label;
  for (size_t k = 0; k < settled.open.size(); ++k) {
    const Labels& rest_list = lists[k + 1];
    const auto leaner =
        std::ranges::lower_bound(rest_list, rest.bytes, {}, &Label::bytes);
    const bool leaves =
        leaner != rest_list.end() && leaner->ticks <= rest.ticks;
    settled.take[settled.open[k]] = leaves ? 0 : 1;
    if (!leaves) {
      rest.bytes -= settled.open_items[k].bytes;
      rest.ticks -= settled.open_items[k].ticks;
    }
  }
  return {.take = std::move(settled.take), .ticks = answer_label.ticks};
}

class Search {
 public:
  Search(std::vector<TickItem> items, int64_t need, const SearchLimits& limits)
      : problem_(std::move(items), need),
        clock_(limits),
        best_(RoundedRelaxation(problem_)),
        bound_(problem_.root_bound) {}

  // The result of the search.
  struct End {
    std::vector<char> take;
    bool is_complete = false;
    StoppedBy stopped_by = StoppedBy::kNothing;
    double bound_ticks = 0;
    int64_t labels = 0;
  };

  End Run() && {
    constexpr std::array<size_t, 4> kWidths = {
        64, 1024, kManyTies, std::numeric_limits<size_t>::max()};
    End end;
    for (const size_t width : kWidths) {
      const PassEnd pass = RunPass(width);
      end.is_complete = pass.is_complete;
      end.stopped_by = pass.stopped_by;
      if (end.stopped_by != StoppedBy::kNothing || end.is_complete) break;
      if (width >= kManyTies &&
          bound_ + kSlack >= static_cast<double>(best_.ticks)) {
        end.is_complete = true;
        break;
      }
    }
    end.take = std::move(best_.take);
    end.bound_ticks = bound_;
    end.labels = labels_;
    return end;
  }

 private:
  struct PassEnd {
    bool is_complete = false;
    StoppedBy stopped_by = StoppedBy::kNothing;
  };

  // Improves the best answer and the bound, unless it is stopped.
  PassEnd RunPass(size_t width) {
    Settled settled = Settle(problem_, Threshold());
    const size_t n = settled.open.size();
    const std::vector<ConvexCost> before = RelaxedBefore(settled.open_items);
    std::vector<Labels> lists(n + 1);  // each of the items from k on
    lists[n] = {settled.taken_sums};
    int64_t labels_kept = 0;
    double least_dropped = kInfinity;
    for (size_t k = n; k-- > 0;) {
      std::span<Label> labels =
          WithOrWithout(lists[k + 1], settled.open_items[k], memory_);
      labels_ += std::ssize(labels);
      const auto [kept_count, least_of_dropped] =
          Prune(before[k], width, labels);
      lists[k].assign(labels.begin(), labels.begin() + kept_count);
      labels_kept += kept_count;
      least_dropped = std::min(least_dropped, least_of_dropped);
      const StoppedBy stop = Stop(labels_kept);
      if (stop != StoppedBy::kNothing) return {.stopped_by = stop};
    }
    const auto best_label =
        std::ranges::lower_bound(lists[0], problem_.need, {}, &Label::bytes);
    if (best_label != lists[0].end() && best_label->ticks <= best_.ticks) {
      best_ = ReadOff(std::move(settled), lists, *best_label);
    }
    bound_ = std::max(
        bound_, std::min(static_cast<double>(best_.ticks), least_dropped));
    return {.is_complete = least_dropped == kInfinity};
  }

  double Threshold() const { return static_cast<double>(best_.ticks) + kSlack; }

  struct Pruned {
    ptrdiff_t kept_count;
    double least_dropped;
  };
  // Moves to the front the labels that can lead to an answer as good as the best one. If
  // they are more than the width, only the most promising ones; then also returns the least
  // bound of the others.
  Pruned Prune(const ConvexCost& rest, size_t width, std::span<Label> labels) {
    bounds_.clear();
    ConvexCost::Reader reader(rest);
    ptrdiff_t kept_count = 0;
    for (const Label& label : labels) {
      const double bound = static_cast<double>(label.ticks) +
                           reader.At(problem_.need - label.bytes);
      if (bound > Threshold()) continue;
      bounds_.push_back(bound);
      labels[kept_count++] = label;
      if (label.bytes >= problem_.need) break;
    }
    if (static_cast<size_t>(kept_count) <= width)
      return {kept_count, kInfinity};
    std::vector<double> ranked = bounds_;
    std::nth_element(ranked.begin(),
                     ranked.begin() + static_cast<ptrdiff_t>(width),
                     ranked.end());
    const double limit = ranked[width];
    auto ties =
        static_cast<ptrdiff_t>(width) -
        std::ranges::count_if(bounds_, [&](double b) { return b < limit; });
    kept_count = 0;
    for (size_t k = 0; k < bounds_.size(); ++k) {
      if (bounds_[k] < limit || (bounds_[k] == limit && ties-- > 0)) {
        labels[kept_count++] = labels[k];
      }
    }
    return {kept_count, limit};
  }

  StoppedBy Stop(int64_t labels_kept) const {
    const StoppedBy stop = clock_.Stop();
    if (stop != StoppedBy::kNothing) return stop;
    if (labels_ > clock_.limits().node_limit) return StoppedBy::kNodes;
    if (labels_kept > kMostLabels) return StoppedBy::kMemory;
    return StoppedBy::kNothing;
  }

  Problem problem_;
  LimitClock clock_;
  Answer best_;
  double bound_;  // ticks
  int64_t labels_ = 0;
  // Memory that every item reuses.
  Labels memory_;
  std::vector<double> bounds_;
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
    cover.bound_ms = kInfinity;
    return cover;
  }

  bool is_complete = true;
  if (need > free_bytes) {
    const Search::End end =
        Search(std::move(open_items), need - free_bytes, limits).Run();
    for (size_t k = 0; k < open.size(); ++k) take[open[k]] = end.take[k];
    is_complete = end.is_complete;
    cover.stopped_by = end.stopped_by;
    cover.bound_ms = end.bound_ticks / scale;
    cover.labels = end.labels;
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
