#include "costmodel/planning/stage_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace acplan::costmodel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Room for n blocks among the first choices: sum of bytes <= room.
struct Knapsack {
  std::span<const BlockChoice> choices;
  int64_t blocks = 0;
  double room = 0;
};

// An edge of the lower hull, and what a byte is worth there.
struct Edge {
  size_t small = 0;
  size_t large = 0;
  double price = 0;  // cost a byte

  // The least cost of `blocks` blocks in `room`, at this price.
  double Bound(const Knapsack& knapsack, double blocks, double room) const {
    const BlockChoice& choice = knapsack.choices[small];
    return blocks * (choice.cost + price * choice.bytes) - price * room;
  }
};

Edge FindEdge(const Knapsack& knapsack) {
  const auto& choices = knapsack.choices;
  const double mean = knapsack.room / static_cast<double>(knapsack.blocks);
  std::vector<size_t> hull;
  for (size_t i = 0; i < choices.size(); ++i) {
    while (hull.size() >= 2) {
      const BlockChoice& a = choices[hull[hull.size() - 2]];
      const BlockChoice& b = choices[hull.back()];
      const BlockChoice& c = choices[i];
      if ((b.cost - a.cost) * (c.bytes - a.bytes) <
          (c.cost - a.cost) * (b.bytes - a.bytes)) {
        break;
      }
      hull.pop_back();
    }
    hull.push_back(i);
  }
  if (choices[hull.back()].bytes <= mean) return {hull.back(), hull.back(), 0};
  for (size_t h = 1; h < hull.size(); ++h) {
    const BlockChoice& small = choices[hull[h - 1]];
    const BlockChoice& large = choices[hull[h]];
    if (large.bytes < mean) continue;
    return {hull[h - 1], hull[h],
            (small.cost - large.cost) / (large.bytes - small.bytes)};
  }
  return {hull.back(), hull.back(), 0};
}

// Enumerates what deviates from an edge, in the order of its excess.
class Enumeration {
 public:
  Enumeration(const Knapsack& knapsack, double least, int64_t most_nodes)
      : knapsack_(knapsack),
        edge_(FindEdge(knapsack)),
        best_cost_(least),
        nodes_left_(most_nodes),
        counts_(knapsack.choices.size(), 0) {
    for (size_t i = 0; i < knapsack.choices.size(); ++i) {
      if (i == edge_.small || i == edge_.large) continue;
      const BlockChoice& choice = knapsack.choices[i];
      const BlockChoice& small = knapsack.choices[edge_.small];
      const double excess = choice.cost + edge_.price * choice.bytes -
                            (small.cost + edge_.price * small.bytes);
      others_.push_back({i, std::max(0.0, excess)});
    }
    std::ranges::sort(others_, {}, &Other::excess);
  }

  double Bound() const {
    return edge_.Bound(knapsack_, static_cast<double>(knapsack_.blocks),
                       knapsack_.room);
  }
  void Run() { Visit(0, knapsack_.blocks, knapsack_.room, 0); }
  bool IsComplete() const { return nodes_left_ > 0; }
  int64_t nodes_left() const { return nodes_left_; }
  // Empty where nothing costs less than what was known.
  const std::vector<int64_t>& best() const { return best_; }
  double best_cost() const { return best_cost_; }

 private:
  struct Other {
    size_t index;
    double excess;
  };

  void Visit(size_t next, int64_t blocks, double room, double cost) {
    if (nodes_left_ <= 0) return;
    --nodes_left_;
    Finish(blocks, room, cost);
    const double bound =
        cost + edge_.Bound(knapsack_, static_cast<double>(blocks), room);
    for (size_t i = next; i < others_.size(); ++i) {
      const auto& [index, excess] = others_[i];
      const BlockChoice& choice = knapsack_.choices[index];
      for (int64_t count = 1; count <= blocks; ++count) {
        const double number = static_cast<double>(count);
        if (bound + number * excess >= best_cost_) break;
        const double left = room - number * choice.bytes;
        if (left < static_cast<double>(blocks - count) *
                       knapsack_.choices.front().bytes) {
          break;
        }
        counts_[index] = count;
        Visit(i + 1, blocks - count, left, cost + number * choice.cost);
      }
      counts_[index] = 0;
      if (bound + excess >= best_cost_) break;
    }
  }

  // The rest is as large as room is.
  void Finish(int64_t blocks, double room, double cost) {
    const BlockChoice& small = knapsack_.choices[edge_.small];
    const BlockChoice& large = knapsack_.choices[edge_.large];
    const double spare = room - static_cast<double>(blocks) * small.bytes;
    if (spare < 0) return;
    int64_t larger = 0;
    if (edge_.large != edge_.small) {
      larger = static_cast<int64_t>(
          std::min(static_cast<double>(blocks),
                   std::floor(spare / (large.bytes - small.bytes))));
    }
    const double total = cost + static_cast<double>(larger) * large.cost +
                         static_cast<double>(blocks - larger) * small.cost;
    if (total >= best_cost_) return;
    best_cost_ = total;
    best_ = counts_;
    best_[edge_.small] += blocks - larger;
    best_[edge_.large] += larger;
  }

  const Knapsack& knapsack_;
  Edge edge_;
  double best_cost_;
  int64_t nodes_left_;
  std::vector<Other> others_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> best_;
};

// The problem with a given largest choice, of which one block is.
Knapsack WithLargest(std::span<const BlockChoice> choices, size_t largest,
                     int64_t blocks, double in_flight, double capacity) {
  const double bytes = choices[largest].bytes;
  return {choices.first(largest + 1), blocks - 1,
          (capacity + bytes) / in_flight - bytes};
}

bool IsFeasible(const Knapsack& knapsack) {
  return static_cast<double>(knapsack.blocks) *
             knapsack.choices.front().bytes <=
         knapsack.room;
}

}  // namespace

StageChoice ChooseForBlocks(std::span<const BlockChoice> choices,
                            int64_t blocks, double in_flight, double capacity,
                            int64_t most_nodes) {
  StageChoice best;
  best.cost = kInfinity;
  best.bound = kInfinity;
  struct Start {
    size_t largest;
    double bound;
  };
  std::vector<Start> starts;
  for (size_t largest = 0; largest < choices.size(); ++largest) {
    const Knapsack knapsack =
        WithLargest(choices, largest, blocks, in_flight, capacity);
    if (!IsFeasible(knapsack)) continue;
    double bound = choices[largest].cost;
    if (knapsack.blocks > 0) {
      bound += FindEdge(knapsack).Bound(
          knapsack, static_cast<double>(knapsack.blocks), knapsack.room);
    }
    starts.push_back({largest, bound});
  }
  std::ranges::sort(starts, {}, &Start::bound);
  for (const Start& start : starts) {
    if (start.bound >= best.cost) break;
    const Knapsack knapsack =
        WithLargest(choices, start.largest, blocks, in_flight, capacity);
    std::vector<int64_t> counts;
    double cost = choices[start.largest].cost;
    if (knapsack.blocks == 0) {
      counts.assign(start.largest + 1, 0);
    } else {
      Enumeration enumeration(knapsack, best.cost - cost, most_nodes);
      enumeration.Run();
      most_nodes = enumeration.nodes_left();
      if (!enumeration.IsComplete())
        best.bound = std::min(best.bound, start.bound);
      counts = enumeration.best();
      cost += enumeration.best_cost();
    }
    if (counts.empty() || cost >= best.cost) continue;
    counts.resize(choices.size(), 0);
    ++counts[start.largest];
    best.is_feasible = true;
    best.counts = std::move(counts);
    best.cost = cost;
  }
  best.bound = std::min(best.bound, best.cost);
  return best;
}

}  // namespace acplan::costmodel
