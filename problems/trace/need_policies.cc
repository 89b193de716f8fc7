// The policies of a call by labels.
//
// Idea. The operators are walked from the last to the first (need_steps.h). A
// label is a policy so far: the bytes that it keeps and the ms that run again. At
// an operator of whose results some are needed, each label goes on in two ways:
// the operator is saved, so these results are kept; or it runs again, and what it
// reads is needed. Where none is needed, there is nothing to decide.
//
// Invariant. The labels of a state contain, for every policy of the operators
// walked so far that leads to that state, one that keeps at most as many bytes and
// costs at most as many ms. For what is to come adds the same to both.
//
// So the labels after the last step contain all policies that no other one beats.
//
// Large calls, which contain many others, would have too many. Their policies are
// relaxed. At a price for a byte, the best policy is found by one label a state,
// and as no policy is better at that price, the line through it bounds all. Under
// the maximum of some such lines lies no policy. Points on it, each with the bytes
// of the next, stand for all policies between them; the policy of a point is the
// one whose line it is on.
#include "problems/trace/need_policies.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "problems/trace/need_steps.h"

namespace acplan::problems {

namespace {

using Move = NeedPolicies::Move;

// Calls with more operators, or with more labels, have relaxed policies.
constexpr size_t kMostOperators = 150;
constexpr size_t kMostLabels = 8000;
// The lines and points of relaxed policies.
constexpr size_t kMostLines = 64;
constexpr int kPoints = 2048;
constexpr double kNear = 5e-4;

struct Label {
  int64_t kept_bytes = 0;
  double ms = 0;
  int32_t move = -1;
};

// By bytes, what no other label beats.
using Labels = std::vector<Label>;

// Returns what no label of both beats.
Labels Best(const Labels& a, const Labels& b) {
  Labels merged;
  merged.reserve(a.size() + b.size());
  std::ranges::merge(a, b, std::back_inserter(merged),
                     [](const Label& x, const Label& y) {
                       return x.kept_bytes != y.kept_bytes
                                  ? x.kept_bytes < y.kept_bytes
                                  : x.ms < y.ms;
                     });
  size_t kept = 0;
  for (const Label& label : merged) {
    // Sums in another order are the same.
    if (kept > 0 && label.ms >= merged[kept - 1].ms * (1 - 1e-12)) continue;
    merged[kept++] = label;
  }
  merged.resize(kept);
  return merged;
}

class LabelWalk {
 public:
  explicit LabelWalk(const std::vector<NeedStep>& steps) : steps_(steps) {}

  // All policies; nothing where there are too many labels.
  std::optional<Labels> Run() {
    states_[0] = {Label()};
    for (const NeedStep& step : steps_) {
      next_.clear();
      size_t count = 0;
      for (auto& [state, labels] : states_) {
        count += labels.size();
        Take(step, state | step.asked, std::move(labels));
      }
      if (count > kMostLabels) return std::nullopt;
      states_ = std::move(next_);
    }
    Labels all;
    for (const auto& [state, labels] : states_) all = Best(all, labels);
    return all;
  }

  std::vector<Move> TakeMoves() { return std::move(moves_); }

 private:
  void Take(const NeedStep& step, uint64_t state, Labels labels) {
    if (!step.IsNeeded(state)) {
      Add(step.AfterNothing(state), std::move(labels));
      return;
    }
    if (step.MaySave(state)) {
      Add(step.AfterSave(state),
          Moved(labels, step.KeptBytes(state), 0,
                {-1, step.group, GroupUse::kSaved}));
    }
    if (step.MayRerun(state)) {
      Add(step.AfterRerun(state),
          Moved(std::move(labels), 0, step.ms,
                {-1, step.group, GroupUse::kRunsAgain}));
    }
  }

  Labels Moved(Labels labels, int64_t kept_bytes, double ms, Move move) {
    for (Label& label : labels) {
      move.previous = label.move;
      label = {.kept_bytes = label.kept_bytes + kept_bytes,
               .ms = label.ms + ms,
               .move = static_cast<int32_t>(moves_.size())};
      moves_.push_back(move);
    }
    return labels;
  }

  void Add(uint64_t state, Labels labels) {
    Labels& of = next_[state];
    of = of.empty() ? std::move(labels) : Best(of, labels);
  }

  const std::vector<NeedStep>& steps_;
  std::map<uint64_t, Labels> states_, next_;
  std::vector<Move> moves_;
};

// Finds the best policy at a price of a byte that is kept.
class PricedWalk {
 public:
  explicit PricedWalk(const std::vector<NeedStep>& steps) : steps_(steps) {}

  std::optional<Label> Run(double price) {
    price_ = price;
    states_ = {{0, Label()}};
    for (const NeedStep& step : steps_) {
      next_.clear();
      for (const auto& [state, label] : states_) {
        Take(step, state | step.asked, label);
      }
      std::swap(states_, next_);
    }
    if (states_.empty()) return std::nullopt;
    return std::ranges::min_element(states_, {}, [&](const auto& of) {
             return Cost(of.second);
           })->second;
  }

  std::vector<Move> TakeMoves() { return std::move(moves_); }

 private:
  std::pair<double, int64_t> Cost(const Label& label) const {
    return {label.ms + price_ * static_cast<double>(label.kept_bytes),
            label.kept_bytes};
  }

  void Take(const NeedStep& step, uint64_t state, const Label& label) {
    if (!step.IsNeeded(state)) {
      Add(step.AfterNothing(state), label, {});
      return;
    }
    if (step.MaySave(state)) {
      Add(step.AfterSave(state),
          {label.kept_bytes + step.KeptBytes(state), label.ms, label.move},
          Move{label.move, step.group, GroupUse::kSaved});
    }
    if (step.MayRerun(state)) {
      Add(step.AfterRerun(state),
          {label.kept_bytes, label.ms + step.ms, label.move},
          Move{label.move, step.group, GroupUse::kRunsAgain});
    }
  }

  // States are few.
  void Add(uint64_t state, Label label, std::optional<Move> move) {
    auto same = std::ranges::find(next_, state,
                                  &std::pair<uint64_t, Label>::first);
    if (same != next_.end() && Cost(same->second) <= Cost(label)) return;
    if (move) {
      label.move = static_cast<int32_t>(moves_.size());
      moves_.push_back(*move);
    }
    if (same == next_.end()) {
      next_.emplace_back(state, label);
    } else {
      same->second = label;
    }
  }

  const std::vector<NeedStep>& steps_;
  double price_ = 0;
  std::vector<std::pair<uint64_t, Label>> states_, next_;
  std::vector<Move> moves_;
};

// A policy that is best at a price, and so a line that no policy is below.
struct BestAtPrice {
  Label label;
  double price;

  double LineAt(double kept_bytes) const {
    return label.ms -
           price * (kept_bytes - static_cast<double>(label.kept_bytes));
  }
};

// Best policies at some prices, by bytes: those that keep least and cost least,
// and between two, where their lines are furthest below both.
std::vector<BestAtPrice> Lines(PricedWalk& walk, double steepest) {
  std::vector<BestAtPrice> lines;
  const auto add = [&](double price) {
    const std::optional<Label> label = walk.Run(price);
    if (!label) return;
    const auto place = std::ranges::lower_bound(
        lines, price, std::greater<>(), &BestAtPrice::price);
    lines.insert(place, {*label, price});
  };
  add(steepest);
  add(0);
  while (!lines.empty() && lines.size() < kMostLines) {
    double widest = 0;
    double price = 0;
    for (size_t k = 0; k + 1 < lines.size(); ++k) {
      const Label& a = lines[k].label;
      const Label& b = lines[k + 1].label;
      const auto bytes = static_cast<double>(b.kept_bytes - a.kept_bytes);
      if (bytes <= 0 || a.ms <= b.ms) continue;
      const double slope = (a.ms - b.ms) / bytes;
      if (slope >= lines[k].price || slope <= lines[k + 1].price) continue;
      // How far the corner of both lines is below the chord.
      const double corner =
          (lines[k].LineAt(0) - lines[k + 1].LineAt(0)) /
          (lines[k].price - lines[k + 1].price);
      const double gap =
          a.ms - slope * (corner - static_cast<double>(a.kept_bytes)) -
          lines[k].LineAt(corner);
      if (gap <= widest) continue;
      widest = gap;
      price = slope;
    }
    if (widest <= kNear * lines.front().label.ms) break;
    add(price);
  }
  return lines;
}

NeedPolicies RelaxedPolicies(const std::vector<NeedStep>& steps,
                             const NeedChoices& choices) {
  double ms = 0;
  for (const NeedStep& step : steps) ms += step.ms;
  PricedWalk walk(steps);
  const std::vector<BestAtPrice> lines = Lines(walk, 1 + ms);
  std::vector<PolicyPoint> points;
  std::vector<int32_t> moves;
  const auto add = [&](int64_t kept_bytes, double least_ms, int32_t move) {
    const int64_t bytes = choices.base_bytes - kept_bytes;
    if (!points.empty() && points.back().ms >= least_ms) {
      points.back() = {bytes, points.back().ms};
      moves.back() = move;
    } else {
      points.push_back({bytes, least_ms});
      moves.push_back(move);
    }
  };
  if (!lines.empty()) {
    const int64_t most = lines.back().label.kept_bytes;
    const int64_t least = lines.front().label.kept_bytes;
    // A point stands for all that keep no less, and less than the one before.
    int64_t before = most;
    for (int k = 0; k <= kPoints; ++k) {
      const int64_t kept = most - (most - least) / kPoints * k;
      const auto of = [&](const BestAtPrice& line) {
        return line.LineAt(static_cast<double>(before));
      };
      const auto highest = std::ranges::max_element(lines, {}, of);
      add(k == kPoints ? least : kept, std::max(of(*highest), 0.0),
          highest->label.move);
      before = kept;
    }
  }
  return {std::move(points), std::move(moves), walk.TakeMoves(),
          choices.may_save.size()};
}

}  // namespace

std::vector<GroupUse> NeedPolicies::UsesOf(size_t point) const {
  std::vector<GroupUse> uses(groups_, GroupUse::kNone);
  for (int32_t m = last_move_[point]; m >= 0; m = moves_[m].previous) {
    uses[moves_[m].group] = moves_[m].use;
  }
  return uses;
}

NeedPolicies PoliciesOf(const NeedGraph& graph, const NeedChoices& choices) {
  const std::vector<NeedStep> steps = StepsOf(graph, choices);
  if (steps.size() > kMostOperators) return RelaxedPolicies(steps, choices);
  LabelWalk walk(steps);
  std::optional<Labels> labels = walk.Run();
  if (!labels) return RelaxedPolicies(steps, choices);
  std::vector<PolicyPoint> points;
  std::vector<int32_t> last_moves;
  std::ranges::reverse(*labels);
  for (const Label& label : *labels) {
    points.push_back({choices.base_bytes - label.kept_bytes, label.ms});
    last_moves.push_back(label.move);
  }
  return {std::move(points), std::move(last_moves), walk.TakeMoves(),
          choices.may_save.size()};
}

}  // namespace acplan::problems
