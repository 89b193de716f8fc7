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
// A policy of the window, with at most b bytes and m ms, is in the band of width
//   m + price b - h(start)
// at any price.
//
// So the labels at the end contain every policy of the band that no other one beats.
//
// Every other policy costs more than h(start) + width - price (bytes that it keeps),
// and at any price at least h(start) - price (bytes). These lines are below them, and
// what remains of the coarse list is raised to the lines (need_policies.h).
//
// The price at which a line is highest for a number of bytes is the slope of the lower
// hull of all policies there. It is found from two corners on both sides of it: the
// cheapest path at the slope between them is a corner in between, or there is none.
#include "problems/trace/policies/sharp_policies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "problems/trace/policies/need_steps.h"
#include "solver/stop.h"

namespace acplan::problems {

namespace {

constexpr size_t kMostStates = 200'000;
constexpr size_t kMostPathUses = 1'000'000;
constexpr size_t kMostPathLabels = 40'000;
// Bands are narrowed so often, each time to a share.
constexpr int kMostBands = 3;
constexpr double kNarrower = .25;
constexpr double kBandTolerance = 1e-9;
constexpr int kMostCorners = 24;
// Prices of which none is more than so many times the other are near.
constexpr double kNearPrice = 1.5;
// Steps of relaxed points are this part of a band.
constexpr double kStepsABand = 16;

struct PathLabel {
  int64_t kept_bytes = 0;
  double ms = 0;
  MoveId move = graph::kNone;
  RecentUses recent = 0;
};
using PathLabels = std::vector<PathLabel>;  // bytes ascending, ms descending

// A choice in a state: to save, to run again, or nothing.
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

// A cheapest path at a price: a corner of the lower hull of all policies.
struct Corner {
  double price = 0;
  double least = 0;  // its ms and price
  int64_t kept_bytes = 0;
  double ms = 0;
};

// The steps on states as a graph.
class StateGraph {
 public:
  explicit StateGraph(const std::vector<NeedStep>& steps) : steps_(steps) {
    std::vector<uint64_t> states = {0};
    size_t count = 0;
    for (const NeedStep& step : steps) {
      solver::StopIfDue();
      std::unordered_map<uint64_t, int32_t> place;
      std::vector<uint64_t> next;
      const auto node_of = [&](uint64_t state) {
        const auto [node, is_new] =
            place.try_emplace(state, static_cast<int32_t>(next.size()));
        if (is_new) next.push_back(state);
        return node->second;
      };
      std::vector<PathNode>& nodes = nodes_.emplace_back();
      for (const uint64_t before : states) {
        const uint64_t state = before | step.requests;
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
      solver::StopIfDue();
      for (const PathNode& node : nodes_[k]) {
        rests[k].push_back(
            std::min({CostAlong(node.saves, price, rests[k + 1]),
                      CostAlong(node.runs_again, price, rests[k + 1]),
                      CostAlong(node.goes_on, price, rests[k + 1])}));
      }
    }
    return rests;
  }

  // A cheapest path at a price.
  Corner CornerAt(double price) const {
    const std::vector<std::vector<double>> rests = RestsAt(price);
    Corner corner = {.price = price, .least = rests.front().front()};
    if (corner.least == std::numeric_limits<double>::infinity()) return corner;
    int32_t at = 0;
    for (size_t k = 0; k < nodes_.size(); ++k) {
      const PathNode& node = nodes_[k][at];
      const auto cost_along = [&](const PathEdge& edge) {
        return CostAlong(edge, price, rests[k + 1]);
      };
      const PathEdge* next = &node.saves;
      if (cost_along(node.runs_again) < cost_along(*next))
        next = &node.runs_again;
      if (cost_along(node.goes_on) < cost_along(*next)) next = &node.goes_on;
      corner.kept_bytes += next->kept_bytes;
      corner.ms += next->ms;
      at = next->to;
    }
    return corner;
  }

 private:
  static double CostAlong(const PathEdge& edge, double price,
                          const std::vector<double>& after) {
    return edge.to < 0
               ? std::numeric_limits<double>::infinity()
               : edge.ms + price * static_cast<double>(edge.kept_bytes) +
                     after[edge.to];
  }

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
      solver::StopIfDue();
      const std::vector<PathNode>& nodes = graph_.nodes(k);
      rest_ = &rests_[k + 1];
      next_.assign(rest_->size(), {});
      size_t count = 0;
      for (size_t n = 0; n < nodes.size(); ++n) {
        if (at_[n].empty()) continue;
        count += at_[n].size();
        Follow(nodes[n].saves, at_[n], k, GroupUse::kSaved);
        Follow(nodes[n].runs_again, at_[n], k, GroupUse::kRunsAgain);
        Follow(nodes[n].goes_on, at_[n], k, GroupUse::kNone);
      }
      if (count > kMostPathLabels || uses_ > kMostPathUses) return {};
      if (PolicyPaths::EndsMove(k, graph_.steps().size())) EndMoves();
      at_ = std::move(next_);
    }
    PathLabels all;
    for (const PathLabels& labels : at_) all = BestOf(all, labels);
    return all;
  }

  PolicyPaths TakePaths() { return std::move(paths_); }

 private:
  void Follow(const PathEdge& edge, const PathLabels& labels, size_t step,
              GroupUse use) {
    if (edge.to < 0) return;
    const double rest = (*rest_)[edge.to];
    PathLabels extended;
    for (const PathLabel& label : labels) {
      PathLabel next = {.kept_bytes = label.kept_bytes + edge.kept_bytes,
                        .ms = label.ms + edge.ms,
                        .move = label.move,
                        .recent = PolicyPaths::With(label.recent, step, use)};
      if (next.ms + price_ * static_cast<double>(next.kept_bytes) + rest >
          most_) {
        continue;
      }
      extended.push_back(next);
    }
    if (use != GroupUse::kNone) uses_ += extended.size();
    PathLabels& best = next_[edge.to];
    best = best.empty() ? std::move(extended) : BestOf(best, extended);
  }

  void EndMoves() {
    for (PathLabels& labels : next_) {
      for (PathLabel& label : labels) {
        label.move = paths_.Add(label.move, label.recent);
        label.recent = 0;
      }
    }
  }

  const StateGraph& graph_;
  const std::vector<std::vector<double>>& rests_;
  const double price_, most_;
  const std::vector<double>* rest_ = nullptr;
  std::vector<PathLabels> at_, next_;
  PolicyPaths paths_;
  size_t uses_ = 0;
};

// Cheapest paths at some prices, the last of which is the price of a byte for
// policies that keep about so much.
std::vector<Corner> CornersNear(const StateGraph& states, int64_t kept_bytes) {
  double all_ms = 0;
  for (const NeedStep& step : states.steps()) all_ms += step.ms;
  std::vector<Corner> corners = {states.CornerAt(1 + all_ms),
                                 states.CornerAt(0)};
  Corner fewer = corners[0];
  Corner more = corners[1];
  for (int k = 0; k < kMostCorners; ++k) {
    const auto bytes = static_cast<double>(more.kept_bytes - fewer.kept_bytes);
    if (bytes <= 0 || fewer.ms <= more.ms) break;
    const double price = (fewer.ms - more.ms) / bytes;
    const Corner corner = states.CornerAt(price);
    corners.push_back(corner);
    const double chord = more.ms + price * static_cast<double>(more.kept_bytes);
    if (corner.least >= chord * (1 - kBandTolerance)) break;
    (corner.kept_bytes >= kept_bytes ? more : fewer) = corner;
  }
  return corners;
}

// Lines that no policy is below, but for those that are named.
class LinesBelow {
 public:
  explicit LinesBelow(int64_t base_bytes) : base_bytes_(base_bytes) {}

  void Add(double price, double least) { lines_.emplace_back(price, least); }

  double At(int64_t discarded) const {
    const auto kept_bytes = static_cast<double>(base_bytes_ - discarded);
    double most = 0;
    for (const auto& [price, least] : lines_) {
      most = std::max(most, least - price * kept_bytes);
    }
    return most;
  }

 private:
  int64_t base_bytes_;
  std::vector<std::pair<double, double>> lines_;
};

// The policies whose reduced cost at a price is at most `width`, which is narrowed
// until there are not too many.
struct ExactBand {
  NeedPolicies::List list = {};
  double most = 0;  // all others cost more, bytes included
};
ExactBand PoliciesInBand(const StateGraph& states, int64_t base_bytes,
                         double price, double width) {
  const std::vector<std::vector<double>> rests = states.RestsAt(price);
  const double least = rests.front().front();
  ExactBand band = {.most = least};
  for (int k = 0; k < kMostBands; ++k, width *= kNarrower) {
    const double most = (least + width) * (1 + kBandTolerance);
    BandWalk walk(states, rests, price, most);
    std::optional<PathLabels> labels = walk.Run();
    if (!labels) continue;
    std::ranges::reverse(*labels);
    for (const PathLabel& label : *labels) {
      band.list.points.push_back({base_bytes - label.kept_bytes, label.ms});
      band.list.last_move.push_back(label.move);
    }
    band.list.paths = walk.TakePaths();
    band.list.group_of_step = GroupsOf(states.steps());
    band.most = most;
    break;
  }
  return band;
}

}  // namespace

std::shared_ptr<const NeedPolicies> SharpPolicies(
    const NeedGraph& graph, const NeedChoices& choices,
    std::shared_ptr<const NeedPolicies> coarse, const PolicyWindow& window) {
  const std::vector<NeedStep> steps = StepsOf(graph, choices);
  const StateGraph states(steps);
  if (states.is_too_large()) return coarse;
  const int64_t kept_bytes = choices.base_bytes - window.least_discarded;
  const std::vector<Corner> corners = CornersNear(states, kept_bytes);
  if (corners.back().least == std::numeric_limits<double>::infinity()) {
    return coarse;
  }
  LinesBelow lines(choices.base_bytes);
  for (const Corner& corner : corners) lines.Add(corner.price, corner.least);
  const double slope = corners.back().price;
  const bool is_near =
      window.price < slope * kNearPrice && window.price * kNearPrice > slope;
  const double price = is_near ? window.price : slope;
  const double least = states.CornerAt(price).least;
  // Relaxed points of what is beyond the band are below it by a step at most.
  double width = std::max(
      0.0, window.most_ms + price * static_cast<double>(kept_bytes) - least);
  const double step_ms = std::max(width / kStepsABand, 1e-9);
  width += 2 * step_ms;
  ExactBand exact = PoliciesInBand(states, choices.base_bytes, price, width);
  lines.Add(price, exact.most);
  const int64_t all_bytes =
      std::accumulate(choices.bytes.begin(), choices.bytes.end(), int64_t{0});
  return std::make_shared<const NeedPolicies>(NeedPolicies::WithExact(
      std::move(coarse), std::move(exact.list),
      {.least_ms = [&](int64_t discarded) { return lines.At(discarded); },
       .step_ms = step_ms,
       .most_ms = window.most_ms + step_ms,
       .least_bytes = choices.base_bytes - all_bytes}));
}

}  // namespace acplan::problems
