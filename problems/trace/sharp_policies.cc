// Exact policies of a large call, near a price.
//
// Idea. The steps on states (need_steps.h) are a graph without cycles: a node is a
// state before a step, an edge what may be done there, with the bytes that it keeps and
// the ms that run again. A policy is a path. One walk from the end gives for each node
// the cheapest rest of a path at a price of a byte, h; the cheapest path costs h at the
// start. PathLabels (bytes, ms) then walk from the start. One that has b bytes and m ms at
// a node is the beginning of no policy of the band if
//   m + price b + h(node) > h(start) + width of the band,
// and is dropped. Few are left, since a plan that is nearly the best is near the bound.
//
// So the labels at the end contain every policy of the band that no other one beats.
//
// Every other policy costs more than h(start) + width - price (bytes that it keeps).
// A point of the coarse list stands for the policies that keep at least as much as it
// does, and less than the point before it, so it costs no less than that expression for
// the bytes of the point before, and is raised to it.
#include "problems/trace/sharp_policies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "problems/trace/need_steps.h"

namespace acplan::problems {

namespace {

constexpr size_t kMostStates = 200'000;
constexpr size_t kMostPathMoves = 400'000;
constexpr size_t kMostPathLabels = 20'000;
// Bands are narrowed so often, each time to a share.
constexpr int kMostBands = 3;
constexpr double kNarrower = .25;
constexpr double kBandTolerance = 1e-9;

struct PathLabel {
  int64_t kept_bytes = 0;
  double ms = 0;
  int32_t move = -1;
};
using PathLabels = std::vector<PathLabel>;  // bytes ascending, ms descending

// What may be done in a state: to save, to run again, or nothing.
struct PathEdge {
  int32_t to = -1;  // among the nodes of the next step; -1: there is none
  int64_t kept_bytes = 0;
  double ms = 0;
};

struct PathNode {
  PathEdge saves, runs_again, goes_on;
};

PathLabels BestOf(const PathLabels& a, const PathLabels& b) {
  PathLabels merged;
  merged.reserve(a.size() + b.size());
  const auto offer = [&](const PathLabel& label) {
    // Sums in another order are the same.
    if (!merged.empty() && label.ms >= merged.back().ms * (1 - 1e-12)) return;
    merged.push_back(label);
  };
  auto x = a.begin();
  auto y = b.begin();
  while (x != a.end() || y != b.end()) {
    const bool takes_x =
        y == b.end() ||
        (x != a.end() && (x->kept_bytes < y->kept_bytes ||
                          (x->kept_bytes == y->kept_bytes && x->ms <= y->ms)));
    offer(takes_x ? *x++ : *y++);
  }
  return merged;
}

// The steps on states as a graph.
class StateGraph {
 public:
  explicit StateGraph(const std::vector<NeedStep>& steps) : steps_(steps) {
    std::vector<uint64_t> states = {0};
    size_t count = 0;
    for (const NeedStep& step : steps) {
      std::unordered_map<uint64_t, int32_t> place;
      std::vector<uint64_t> next;
      const auto node_of = [&](uint64_t state) {
        const auto [found, is_new] =
            place.try_emplace(state, static_cast<int32_t>(next.size()));
        if (is_new) next.push_back(state);
        return found->second;
      };
      std::vector<PathNode>& nodes = nodes_.emplace_back();
      for (const uint64_t before : states) {
        const uint64_t state = before | step.asked;
        PathNode node;
        if (!step.IsNeeded(state)) {
          node.goes_on.to = node_of(step.AfterNothing(state));
        } else {
          if (step.MaySave(state)) {
            node.saves = {.to = node_of(step.AfterSave(state)),
                          .kept_bytes = step.KeptBytes(state)};
          }
          if (step.MayRerun(state)) {
            node.runs_again = {.to = node_of(step.AfterRerun(state)),
                               .ms = step.ms};
          }
        }
        nodes.push_back(node);
      }
      count += nodes.size();
      is_too_large_ = count > kMostStates;
      if (is_too_large_) return;
      states = std::move(next);
    }
    last_ = states.size();
  }

  bool is_too_large() const { return is_too_large_; }
  const std::vector<NeedStep>& steps() const { return steps_; }
  const std::vector<PathNode>& nodes(size_t step) const { return nodes_[step]; }

  // For each step and node, and the end, the cheapest rest of a path.
  std::vector<std::vector<double>> RestsAt(double price) const {
    std::vector<std::vector<double>> rests(nodes_.size() + 1);
    rests.back().assign(last_, 0);
    for (size_t k = nodes_.size(); k-- > 0;) {
      const std::vector<double>& after = rests[k + 1];
      const auto along = [&](const PathEdge& edge) {
        return edge.to < 0
                   ? std::numeric_limits<double>::infinity()
                   : edge.ms + price * static_cast<double>(edge.kept_bytes) +
                         after[edge.to];
      };
      for (const PathNode& node : nodes_[k]) {
        rests[k].push_back(std::min(
            {along(node.saves), along(node.runs_again), along(node.goes_on)}));
      }
    }
    return rests;
  }

 private:
  const std::vector<NeedStep>& steps_;
  std::vector<std::vector<PathNode>> nodes_;  // a step
  size_t last_ = 0;                           // states at the end
  bool is_too_large_ = false;
};

// One walk of labels that stay within a band.
class BandWalk {
 public:
  // `most`: the reduced cost of a path, at the price, with what the cheapest costs.
  BandWalk(const StateGraph& graph,
           const std::vector<std::vector<double>>& rests, double price,
           double most)
      : graph_(graph), rests_(rests), price_(price), most_(most) {}

  // The policies of the band, but for those that others beat; nothing where there
  // are too many.
  std::optional<PathLabels> Run() {
    at_ = {{PathLabel()}};
    for (size_t k = 0; k < graph_.steps().size(); ++k) {
      const int group = graph_.steps()[k].group;
      const std::vector<PathNode>& nodes = graph_.nodes(k);
      rest_ = &rests_[k + 1];
      next_.assign(rest_->size(), {});
      size_t count = 0;
      for (size_t n = 0; n < nodes.size(); ++n) {
        if (at_[n].empty()) continue;
        count += at_[n].size();
        Follow(nodes[n].saves, at_[n],
               NeedPolicies::Move{-1, group, GroupUse::kSaved});
        Follow(nodes[n].runs_again, at_[n],
               NeedPolicies::Move{-1, group, GroupUse::kRunsAgain});
        Follow(nodes[n].goes_on, at_[n], std::nullopt);
      }
      if (count > kMostPathLabels || moves_.size() > kMostPathMoves) return {};
      at_ = std::move(next_);
    }
    PathLabels all;
    for (const PathLabels& labels : at_) all = BestOf(all, labels);
    return all;
  }

  std::vector<NeedPolicies::Move> TakeMoves() { return std::move(moves_); }

 private:
  void Follow(const PathEdge& edge, const PathLabels& labels,
              std::optional<NeedPolicies::Move> move) {
    if (edge.to < 0) return;
    const double rest = (*rest_)[edge.to];
    PathLabels moved;
    for (const PathLabel& label : labels) {
      PathLabel next = {.kept_bytes = label.kept_bytes + edge.kept_bytes,
                        .ms = label.ms + edge.ms,
                        .move = label.move};
      if (next.ms + price_ * static_cast<double>(next.kept_bytes) + rest >
          most_) {
        continue;
      }
      if (move) {
        move->previous = label.move;
        next.move = static_cast<int32_t>(moves_.size());
        moves_.push_back(*move);
      }
      moved.push_back(next);
    }
    PathLabels& of = next_[edge.to];
    of = of.empty() ? std::move(moved) : BestOf(of, moved);
  }

  const StateGraph& graph_;
  const std::vector<std::vector<double>>& rests_;
  const double price_, most_;
  const std::vector<double>* rest_ = nullptr;
  std::vector<PathLabels> at_, next_;
  std::vector<NeedPolicies::Move> moves_;
};

}  // namespace

std::shared_ptr<const NeedPolicies> SharpPolicies(
    const NeedGraph& graph, const NeedChoices& choices,
    std::shared_ptr<const NeedPolicies> coarse, const PriceBand& band) {
  const std::vector<NeedStep> steps = StepsOf(graph, choices);
  const StateGraph states(steps);
  if (states.is_too_large()) return coarse;
  const std::vector<std::vector<double>> rests = states.RestsAt(band.price);
  const double least = rests.front().front();
  double width = band.most_ms;
  for (int k = 0; k < kMostBands; ++k, width *= kNarrower) {
    const double most = (least + width) * (1 + kBandTolerance);
    BandWalk walk(states, rests, band.price, most);
    const std::optional<PathLabels> labels = walk.Run();
    if (!labels) continue;
    NeedPolicies::List exact;
    for (const PathLabel& label : *labels) {
      exact.points.push_back({choices.base_bytes - label.kept_bytes, label.ms});
      exact.last_move.push_back(label.move);
    }
    exact.moves = walk.TakeMoves();
    std::ranges::reverse(exact.points);
    std::ranges::reverse(exact.last_move);
    const auto least_outside = [&](int64_t discarded) {
      return least + width -
             band.price * static_cast<double>(choices.base_bytes - discarded);
    };
    return std::make_shared<const NeedPolicies>(NeedPolicies::WithExact(
        std::move(coarse), std::move(exact), least_outside));
  }
  return coarse;
}

}  // namespace acplan::problems
