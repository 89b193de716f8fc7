#include "costmodel/planning/stage_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "graph/base/number_limits.h"

// An integer knapsack with many equal items, solved twice over.
//
// The block that keeps most of all goes back first, which saves its bytes once. So
// the problem is solved for each choice as the largest (WithLargest): one block has
// it, and the others have n - 1 blocks' room among the choices up to it. That is a
// restriction, and the best of all of them is the optimum, so nothing says that the
// others must be smaller than it.
//
// Enumeration. The linear relaxation of a knapsack whose items are divisible mixes
// two neighbours on the lower hull of (bytes, cost), an edge. At the price of a byte
// on that edge every other choice costs an excess over it, at least 0. A solution
// costs at least the bound of the edge plus the excesses of all blocks that deviate,
// so blocks that deviate are enumerated in the order of excess until no more can be
// afforded. The rest takes the two choices of the edge, the larger as often as there
// is room, which is cheapest. Largest choices are tried by ascending bound.
//
// Dynamic program. Where that takes too many nodes, and bytes are multiples of a unit
// above those of the smallest choice, the least cost of so many blocks in so many
// steps is exact (StepWalk). Blocks can be put in an order in which their sum stays
// within a choice's size of the straight line (Steinitz's lemma, in one dimension),
// so only sums near the line are kept.

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

// Choices in whole steps: of bytes above those of the smallest.
struct Steps {
  double unit = 0;  // bytes
  std::vector<int64_t> sizes;

  int64_t most() const { return sizes.back(); }
};

std::optional<Steps> FindSteps(std::span<const BlockChoice> choices) {
  constexpr auto kMostBytes = static_cast<double>(graph::kMostExactInteger);
  int64_t unit = 0;
  Steps steps;
  for (const BlockChoice& choice : choices) {
    const double bytes = choice.bytes - choices.front().bytes;
    if (bytes > kMostBytes || bytes != std::floor(bytes)) return std::nullopt;
    steps.sizes.push_back(static_cast<int64_t>(bytes));
    unit = std::gcd(unit, steps.sizes.back());
  }
  if (unit == 0) return std::nullopt;
  steps.unit = static_cast<double>(unit);
  for (int64_t& size : steps.sizes) size /= unit;
  return steps;
}

// The least cost of so many blocks in so many steps, exactly, by blocks one
// after another. In some order of the blocks their sum stays near a line from
// nothing to the room (Steinitz), so that only sums near it are kept.
class StepWalk {
 public:
  // `room`: steps, at most all that the blocks can fill.
  StepWalk(std::span<const BlockChoice> choices, const Steps& steps,
           int64_t blocks, int64_t room)
      : choices_(choices), steps_(steps), blocks_(blocks), room_(room) {}

  // How many are kept, at most.
  double Sums() const {
    return static_cast<double>(blocks_) * 4 *
           static_cast<double>(steps_.most());
  }

  void Run() {
    costs_.assign(blocks_ + 1, {});
    for (int64_t n = 0; n <= blocks_; ++n) {
      costs_[n].assign(High(n) - Low(n) + 1, kInfinity);
    }
    costs_[0][0] = 0;
    for (int64_t n = 1; n <= blocks_; ++n) {
      for (size_t i = 0; i < choices_.size(); ++i) Add(n, i);
    }
  }

  // In `room` steps, at most one choice's size less than in the constructor.
  // Steps filled; none where the blocks do not fit.
  std::optional<int64_t> Fill(int64_t room) const {
    std::optional<int64_t> best;
    for (int64_t filled = Low(blocks_); filled <= room; ++filled) {
      const double cost = Cost(blocks_, filled);
      if (cost < (best ? Cost(blocks_, *best) : kInfinity)) best = filled;
    }
    return best;
  }

  double CostOf(int64_t filled) const { return Cost(blocks_, filled); }

  std::vector<int64_t> CountsOf(int64_t filled) const {
    std::vector<int64_t> counts(choices_.size(), 0);
    for (int64_t n = blocks_; n > 0; --n) {
      size_t i = 0;
      while (Cost(n - 1, filled - steps_.sizes[i]) + choices_[i].cost !=
             Cost(n, filled)) {
        ++i;
      }
      ++counts[i];
      filled -= steps_.sizes[i];
    }
    return counts;
  }

 private:
  // The room that is left, and that of another largest choice, are at most a
  // choice's size each; so is how far sums in the best order are from the line.
  int64_t Low(int64_t n) const {
    return std::max<int64_t>(0, n * room_ / blocks_ - 3 * steps_.most());
  }
  int64_t High(int64_t n) const {
    return std::min(room_, n * room_ / blocks_ + steps_.most() + 1);
  }

  double Cost(int64_t n, int64_t filled) const {
    if (filled < Low(n) || filled > High(n)) return kInfinity;
    return costs_[n][filled - Low(n)];
  }

  void Add(int64_t n, size_t i) {
    const int64_t size = steps_.sizes[i];
    const int64_t low = std::max(Low(n), Low(n - 1) + size);
    const int64_t high = std::min(High(n), High(n - 1) + size);
    if (high < low) return;
    const double* from = costs_[n - 1].data() + (low - size - Low(n - 1));
    double* to = costs_[n].data() + (low - Low(n));
    const double cost = choices_[i].cost;
    for (int64_t k = 0; k <= high - low; ++k) {
      const double with = from[k] + cost;
      to[k] = with < to[k] ? with : to[k];
    }
  }

  std::span<const BlockChoice> choices_;
  const Steps& steps_;
  int64_t blocks_;
  int64_t room_;
  std::vector<std::vector<double>> costs_;  // by blocks, by steps from Low
};

// Steps that are left for all blocks but the largest.
int64_t RoomInSteps(const Knapsack& knapsack, const Steps& steps) {
  const double spare = knapsack.room - static_cast<double>(knapsack.blocks) *
                                           knapsack.choices.front().bytes;
  const double all =
      static_cast<double>(knapsack.blocks) * static_cast<double>(steps.most());
  return static_cast<int64_t>(
      std::min(std::floor(spare / steps.unit + 1e-9), all));
}

// Whatever the largest choice, the others may be larger still: that takes less
// room, not more.
std::optional<StageChoice> ChooseBySteps(std::span<const BlockChoice> choices,
                                         int64_t blocks, double in_flight,
                                         double capacity, double most_work) {
  constexpr double kMostSums = 4e6;
  const std::optional<Steps> steps = FindSteps(choices);
  if (!steps || blocks < 2) return std::nullopt;
  std::vector<int64_t> rooms;  // negative: none
  for (size_t i = 0; i < choices.size(); ++i) {
    const Knapsack knapsack =
        WithLargest(choices, i, blocks, in_flight, capacity);
    rooms.push_back(IsFeasible(knapsack) ? RoomInSteps(knapsack, *steps) : -1);
  }
  StepWalk walk(choices, *steps, blocks - 1, std::ranges::max(rooms));
  if (walk.Sums() > kMostSums ||
      walk.Sums() * static_cast<double>(choices.size()) > most_work) {
    return std::nullopt;
  }
  walk.Run();
  StageChoice best;
  best.cost = kInfinity;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::optional<int64_t> filled = walk.Fill(rooms[i]);
    if (!filled) continue;
    const double cost = choices[i].cost + walk.CostOf(*filled);
    if (cost >= best.cost) continue;
    best.cost = cost;
    best.counts = walk.CountsOf(*filled);
    ++best.counts[i];
    best.is_feasible = true;
  }
  best.bound = best.cost;
  return best;
}

StageChoice AllSmallest(std::span<const BlockChoice> choices, int64_t blocks,
                        double bound) {
  StageChoice choice{.is_feasible = true,
                     .counts = std::vector<int64_t>(choices.size(), 0),
                     .cost = static_cast<double>(blocks) * choices[0].cost,
                     .bound = bound};
  choice.counts.front() = blocks;
  return choice;
}

}  // namespace

StageChoice ChooseForBlocks(std::span<const BlockChoice> choices,
                            int64_t blocks, double in_flight, double capacity,
                            const StageChoiceOptions& options) {
  int64_t most_nodes = options.most_nodes;
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
  if (!starts.empty() && starts.front().bound >= options.cutoff) {
    return AllSmallest(choices, blocks, starts.front().bound);
  }
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
  if (best.bound < std::min(best.cost, options.cutoff)) {
    const std::optional<StageChoice> exact =
        ChooseBySteps(choices, blocks, in_flight, capacity, options.most_work);
    if (exact) return *exact;
  }
  best.bound = std::min(best.bound, best.cost);
  return best;
}

}  // namespace acplan::costmodel
