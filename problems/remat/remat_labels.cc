#include "problems/remat/remat_labels.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "solver/infinity.h"

// Idea. A label is the beginning of a path: its state, ms, and bytes at the
// rows. If two labels are in one state, the one with at least as many ms and,
// at every row, at least as many bytes is not needed, whatever follows. Two
// more kinds of labels are not needed: those whose ms, bytes and cheapest rest
// at the rows' prices come to at least the cut-off plus the price of the room,
// since each path from there within the rows costs at least the cut-off (weak
// duality); and those that no rest keeps within the room. Bytes that every rest
// keeps within the room do not tell labels apart: they count as the most bytes
// of which that is true.

namespace acplan::problems {

using solver::kInfinity;

namespace {

using Edge = DecisionGraph::Edge;
using Level = DecisionGraph::Level;

// The sums of rests of paths, by level and state.
struct Rests {
  Rests(const DecisionGraph& graph, std::span<const double> prices)
      : cheapest(CheapestRests(graph, prices)) {
    for (size_t row = 0; row < graph.rows.size(); ++row) {
      least.push_back(LeastRests(graph, row));
      most.push_back(MostRests(graph, row));
      room_price += prices[row] * static_cast<double>(graph.room[row]);
    }
  }

  LevelValues cheapest;           // ms and bytes at the prices
  std::vector<LevelBytes> least;  // by row
  std::vector<LevelBytes> most;   // by row
  double room_price = 0;
};

// The labels of a level, with `rows` bytes each.
struct Labels {
  std::vector<double> ms;
  std::vector<double> least;  // the least cost of a path from here, by prices
  std::vector<int32_t> state;
  std::vector<int32_t> parent;
  std::vector<int32_t> edge;
  std::vector<int64_t> bytes;

  size_t size() const { return ms.size(); }
};

// The origins of the labels of a level.
struct Origins {
  std::vector<int32_t> parent;
  std::vector<int32_t> edge;
};

// Returns the bytes of a state's labels at the rows that tell them apart: a row
// is left out if its bytes are the same for all labels, or differ from another
// row's by a constant. Bytes that every rest keeps within the room count as the
// most such bytes.
std::vector<std::vector<int64_t>> ToldApart(const Labels& labels,
                                            std::span<const int32_t> of_state,
                                            const DecisionGraph& graph,
                                            const Rests& rests, size_t l) {
  const size_t rows = graph.rows.size();
  const int32_t state = labels.state[of_state.front()];
  std::vector<std::vector<int64_t>> all;
  for (size_t row = 0; row < rows; ++row) {
    const int64_t harmless = graph.room[row] - rests.most[row][l][state];
    std::vector<int64_t> bytes;
    bytes.reserve(of_state.size());
    for (const int32_t label : of_state) {
      bytes.push_back(std::max(
          labels.bytes[static_cast<size_t>(label) * rows + row], harmless));
    }
    for (size_t i = bytes.size(); i-- > 0;) bytes[i] -= bytes[0];
    const bool is_same =
        std::ranges::all_of(bytes, [](int64_t b) { return b == 0; });
    if (!is_same && std::ranges::find(all, bytes) == all.end())
      all.push_back(std::move(bytes));
  }
  return all;
}

// Adds the labels of a state, given by ms, that no other one beats.
void AddUnbeaten(std::span<const int32_t> of_state,
                 const std::vector<std::vector<int64_t>>& row_bytes,
                 std::vector<int32_t>& needed_labels) {
  std::vector<size_t> kept_places;
  for (size_t i = 0; i < of_state.size(); ++i) {
    const bool is_beaten = std::ranges::any_of(kept_places, [&](size_t k) {
      return std::ranges::all_of(row_bytes,
                                 [&](const std::vector<int64_t>& bytes) {
                                   return bytes[k] <= bytes[i];
                                 });
    });
    if (is_beaten) continue;
    // With one row the last label kept has the fewest bytes.
    if (row_bytes.size() == 1) kept_places.clear();
    kept_places.push_back(i);
    needed_labels.push_back(of_state[i]);
  }
}

class Pass {
 public:
  Pass(const RematLabelQuestion& question, const solver::LimitClock& clock)
      : question_(question),
        graph_(question.graph),
        clock_(clock),
        rests_(question.graph, question.prices) {
    answer_.dropped_ms = kInfinity;
  }

  RematLabelAnswer Run() {
    now_ = {.ms = {0},
            .least = {0},
            .state = {0},
            .parent = {-1},
            .edge = {-1},
            .bytes = std::vector<int64_t>(Rows(), 0)};
    for (size_t l = 0; l < graph_.levels.size(); ++l) {
      Extend(l);
      Reduce(l + 1);
      answer_.labels += static_cast<int64_t>(now_.size());
      if (clock_.Stop() != solver::StoppedBy::kNothing) {
        answer_.is_stopped = true;
        return std::move(answer_);
      }
    }
    ReadPaths();
    return std::move(answer_);
  }

 private:
  size_t Rows() const { return graph_.rows.size(); }

  void Extend(size_t l) {
    const Level& level = graph_.levels[l];
    std::vector<size_t> begin(static_cast<size_t>(level.states) + 1, 0);
    for (const Edge& edge : level.edges) ++begin[edge.from + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    next_ = {};
    for (size_t i = 0; i < now_.size(); ++i) {
      const int32_t state = now_.state[i];
      for (size_t e = begin[state]; e < begin[state + 1]; ++e) Add(l, i, e);
    }
  }

  void Add(size_t l, size_t i, size_t e) {
    const Level& level = graph_.levels[l];
    const Edge& edge = level.edges[e];
    const double rest = rests_.cheapest[l + 1][edge.to];
    if (rest == kInfinity) return;
    const int64_t* effect = graph_.EffectOf(level, edge);
    const int64_t* before = now_.bytes.data() + i * Rows();
    double least = now_.ms[i] + edge.ms + rest - rests_.room_price;
    for (size_t row = 0; row < Rows(); ++row) {
      const int64_t bytes = before[row] + effect[row];
      if (bytes + rests_.least[row][l + 1][edge.to] > graph_.room[row]) return;
      least += question_.prices[row] * static_cast<double>(bytes);
    }
    if (least >= question_.cut_off_ms) return;
    const double ms = now_.ms[i] + edge.ms;
    if (ms >= question_.cut_off_ms) return;
    next_.ms.push_back(ms);
    next_.least.push_back(std::max(least, ms));
    next_.state.push_back(edge.to);
    next_.parent.push_back(static_cast<int32_t>(i));
    next_.edge.push_back(static_cast<int32_t>(e));
    for (size_t row = 0; row < Rows(); ++row)
      next_.bytes.push_back(before[row] + effect[row]);
  }

  // Leaves in `now_` the needed labels of `next_`, by state.
  void Reduce(size_t l) {
    std::vector<int32_t> order(next_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [this](int32_t a, int32_t b) {
      if (next_.state[a] != next_.state[b])
        return next_.state[a] < next_.state[b];
      if (next_.ms[a] != next_.ms[b]) return next_.ms[a] < next_.ms[b];
      if (next_.least[a] != next_.least[b])
        return next_.least[a] < next_.least[b];
      return a < b;
    });
    std::vector<int32_t> needed_labels;
    for (size_t begin = 0; begin < order.size();) {
      size_t end = begin;
      const int32_t state = next_.state[order[begin]];
      while (end < order.size() && next_.state[order[end]] == state) ++end;
      const auto of_state = std::span(order).subspan(begin, end - begin);
      AddUnbeaten(of_state, ToldApart(next_, of_state, graph_, rests_, l),
                  needed_labels);
      begin = end;
    }
    Drop(needed_labels);
    Take(needed_labels);
  }

  void Drop(std::vector<int32_t>& needed_labels) {
    if (std::ssize(needed_labels) <= question_.labels_a_level) return;
    const auto is_cheaper = [this](int32_t a, int32_t b) {
      if (next_.least[a] != next_.least[b])
        return next_.least[a] < next_.least[b];
      return a < b;
    };
    const auto end = needed_labels.begin() + question_.labels_a_level;
    std::ranges::nth_element(needed_labels, end, is_cheaper);
    for (auto label = end; label != needed_labels.end(); ++label)
      answer_.dropped_ms = std::min(answer_.dropped_ms, next_.least[*label]);
    needed_labels.erase(end, needed_labels.end());
    std::ranges::sort(needed_labels, {}, [this](int32_t label) {
      return std::pair(next_.state[label], next_.ms[label]);
    });
  }

  void Take(const std::vector<int32_t>& needed_labels) {
    now_ = {};
    Origins origins;
    for (const int32_t label : needed_labels) {
      now_.ms.push_back(next_.ms[label]);
      now_.least.push_back(next_.least[label]);
      now_.state.push_back(next_.state[label]);
      origins.parent.push_back(next_.parent[label]);
      origins.edge.push_back(next_.edge[label]);
      const auto* begin =
          next_.bytes.data() + static_cast<size_t>(label) * Rows();
      now_.bytes.insert(now_.bytes.end(), begin, begin + Rows());
    }
    origins_.push_back(std::move(origins));
  }

  void ReadPaths() {
    std::vector<int32_t> order(now_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [this](int32_t i) { return now_.ms[i]; });
    if (std::ssize(order) > question_.paths) {
      answer_.dropped_ms =
          std::min(answer_.dropped_ms, now_.ms[order[question_.paths]]);
      order.resize(static_cast<size_t>(question_.paths));
    }
    for (int32_t label : order) {
      DecisionPath path(graph_.levels.size());
      for (size_t l = path.size(); l-- > 0;) {
        path[l] = origins_[l].edge[label];
        label = origins_[l].parent[label];
      }
      answer_.paths.push_back(std::move(path));
    }
  }

  const RematLabelQuestion& question_;
  const DecisionGraph& graph_;
  const solver::LimitClock& clock_;
  const Rests rests_;
  Labels now_;
  Labels next_;
  std::vector<Origins> origins_;  // by level
  RematLabelAnswer answer_;
};

}  // namespace

RematLabelAnswer FindPaths(const RematLabelQuestion& question,
                           const solver::LimitClock& clock) {
  return Pass(question, clock).Run();
}

}  // namespace acplan::problems
