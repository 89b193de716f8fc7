// The policies of a call.
//
// Small calls have all of them, by labels (label_walk.h).
//
// Large calls, which contain many others, would have too many. Their policies are
// relaxed: bytes are rounded down to multiples of a unit that most tensors are
// multiples of, so that labels coincide. Where that does not help, lines take the
// place of labels. At a price for a byte, the best policy is found by one label a
// state, and as no policy is better at that price, the line through it bounds all.
// Under the maximum of some such lines lies no policy, and near it lie good ones,
// by labels that coincide where bytes nearly do.
#include "problems/trace/policies/need_policies.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "problems/trace/policies/label_walk.h"
#include "problems/trace/policies/need_steps.h"
#include "solver/stop.h"

namespace acplan::problems {

namespace {

using Label = PolicyLabel;
using Labels = PolicyLabels;

// Calls with more operators, or with more labels, have relaxed policies.
constexpr size_t kMostOperators = 150;
constexpr LabelLimits kFewLabels = {.labels = 8000, .extended = 2'000'000};
// Where all bytes are multiples of a large unit, labels are few for what they tell.
constexpr LabelLimits kManyLabels = {.labels = 60'000, .extended = 60'000'000};
// Bytes of large calls are rounded down, by no more than a share of all.
constexpr double kMostLost = 1e-3;
// All bytes, where labels need not be exact.
constexpr int64_t kGrid = 1000;
// How many lines there are at most, and how far from what is possible.
constexpr size_t kMostLines = 64;
constexpr double kNear = 5e-4;
// Points that are further apart, as a share of all ms, get others between them.
constexpr double kFarApart = 1.0 / 256;
// States of a walk at a price.
constexpr ptrdiff_t kMostStates = 256;

// A policy, with its moves (policy_paths.h).
struct PricedPolicy {
  Label label = {};
  std::vector<RecentUses> moves = {};
};

// Finds the best policy at a price of a byte that is kept.
//
// Many states are too many: the dearest become one, in which what is needed is what all
// of them need, at the cost of the cheapest. Whatever steps follow, fewer needs cost
// no more, so the best of all states still costs no more than any policy.
class PricedWalk {
 public:
  explicit PricedWalk(const std::vector<NeedStep>& steps) : steps_(steps) {}

  std::optional<PricedPolicy> Run(double price) {
    price_ = price;
    states_ = {{.state = 0}};
    PolicyPaths paths;
    for (size_t k = 0; k < steps_.size(); ++k) {
      solver::StopIfDue();
      next_.clear();
      for (const Walked& walk : states_) {
        Take(k, walk.state | steps_[k].requests, walk.label);
      }
      KeepCheapest();
      if (std::ssize(next_) > kMostStates) MergeDearest();
      if (PolicyPaths::EndsMove(k, steps_.size())) {
        for (Walked& walk : next_) {
          walk.label.move = paths.Add(walk.label.move, walk.label.recent);
          walk.label.recent = 0;
        }
      }
      std::swap(states_, next_);
    }
    if (states_.empty()) return std::nullopt;
    const Label& label = std::ranges::min_element(states_, IsCheaper)->label;
    return PricedPolicy{label, paths.MovesOf(label.move)};
  }

 private:
  struct Walked {
    uint64_t state = 0;
    double cost = 0;  // the ms and the price of the kept bytes
    Label label = {};
  };

  static bool IsCheaper(const Walked& a, const Walked& b) {
    return a.cost != b.cost ? a.cost < b.cost
                            : a.label.kept_bytes < b.label.kept_bytes;
  }

  void Add(uint64_t state, const Label& label) {
    next_.push_back(
        {.state = state,
         .cost = label.ms + price_ * static_cast<double>(label.kept_bytes),
         .label = label});
  }

  void Take(size_t k, uint64_t state, const Label& label) {
    const NeedStep& step = steps_[k];
    if (!step.IsNeeded(state)) {
      Add(step.AfterNothing(state), label);
      return;
    }
    if (step.MaySave(state)) {
      Label saved = label;
      saved.kept_bytes += step.KeptBytes(state);
      saved.recent = PolicyPaths::With(label.recent, k, GroupUse::kSaved);
      Add(step.AfterSave(state), saved);
    }
    if (step.MayRerun(state)) {
      Label rerun = label;
      rerun.ms += step.ms;
      rerun.recent = PolicyPaths::With(label.recent, k, GroupUse::kRunsAgain);
      Add(step.AfterRerun(state), rerun);
    }
  }

  // Keeps the cheapest label of each state.
  void KeepCheapest() {
    std::ranges::sort(next_, [](const Walked& a, const Walked& b) {
      return a.state != b.state ? a.state < b.state : IsCheaper(a, b);
    });
    const auto same = std::ranges::unique(next_, {}, &Walked::state);
    next_.erase(same.begin(), same.end());
  }

  void MergeDearest() {
    const auto rest = next_.begin() + (kMostStates - 1);
    std::ranges::nth_element(next_, rest, IsCheaper);
    Walked merged = *rest;
    for (auto walk = rest; walk != next_.end(); ++walk) {
      merged.state &= walk->state;
    }
    next_.erase(rest, next_.end());
    next_.push_back(merged);
  }

  const std::vector<NeedStep>& steps_;
  double price_ = 0;
  std::vector<Walked> states_, next_;
};

// A policy that is best at a price, and so a line that no policy is below.
struct BestAtPrice {
  Label label;
  std::vector<RecentUses> moves;
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
    std::optional<PricedPolicy> policy = walk.Run(price);
    if (!policy) return;
    const auto place = std::ranges::lower_bound(lines, price, std::greater<>(),
                                                &BestAtPrice::price);
    lines.insert(place, {policy->label, std::move(policy->moves), price});
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
      const double corner = (lines[k].LineAt(0) - lines[k + 1].LineAt(0)) /
                            (lines[k].price - lines[k + 1].price);
      const double gap = a.ms -
                         slope * (corner - static_cast<double>(a.kept_bytes)) -
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

// Returns the policy that does what `first` does in the steps before `end`, and what
// `second` does from there on; nothing if no policy may do that. Whatever else is needed
// runs again, if it may.
std::optional<PricedPolicy> MixedPolicy(const std::vector<NeedStep>& steps,
                                        const std::vector<RecentUses>& first,
                                        const std::vector<RecentUses>& second,
                                        size_t end) {
  PricedPolicy policy;
  Label& label = policy.label;
  uint64_t state = 0;
  for (size_t k = 0; k < steps.size(); ++k) {
    const NeedStep& step = steps[k];
    state |= step.requests;
    GroupUse use = GroupUse::kNone;
    if (!step.IsNeeded(state)) {
      state = step.AfterNothing(state);
    } else {
      const bool saves =
          step.MaySave(state) &&
          (!step.MayRerun(state) ||
           PolicyPaths::UseOf(k < end ? first : second, k) == GroupUse::kSaved);
      if (!saves && !step.MayRerun(state)) return std::nullopt;
      use = saves ? GroupUse::kSaved : GroupUse::kRunsAgain;
      label.kept_bytes += saves ? step.KeptBytes(state) : 0;
      label.ms += saves ? 0 : step.ms;
      state = saves ? step.AfterSave(state) : step.AfterRerun(state);
    }
    label.recent = PolicyPaths::With(label.recent, k, use);
    if (PolicyPaths::EndsMove(k, steps.size())) {
      policy.moves.push_back(label.recent);
      label.recent = 0;
    }
  }
  return policy;
}

// Policies and their paths. kept_bytes are true.
struct GoodPolicies {
  void Add(const Label& label, const std::vector<RecentUses>& moves) {
    labels.push_back(label);
    labels.back().move = paths.AddPath(moves);
  }

  // Adds policies that do what one line's does in a part of the steps, and what the next
  // line's does in the rest: where blocks are equal, all of them change at one price.
  void AddBetween(const std::vector<BestAtPrice>& lines,
                  const std::vector<NeedStep>& steps, double far_apart) {
    for (size_t l = 0; l + 1 < lines.size(); ++l) {
      const double rise = lines[l].label.ms - lines[l + 1].label.ms;
      const size_t parts =
          rise > far_apart ? static_cast<size_t>(rise / far_apart) + 1 : 1;
      for (size_t k = 1; k < parts; ++k) {
        solver::StopIfDue();
        const auto policy =
            MixedPolicy(steps, lines[l].moves, lines[l + 1].moves,
                        steps.size() * k / parts);
        if (policy) Add(policy->label, policy->moves);
      }
    }
  }

  // Sorts those that keep most first, and keeps each only if it keeps less for more ms.
  void Sort() {
    std::ranges::sort(labels, [](const Label& a, const Label& b) {
      return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes
                                          : a.ms < b.ms;
    });
    size_t count = 0;
    for (const Label& label : labels) {
      if (count > 0 && label.ms >= labels[count - 1].ms) continue;
      labels[count++] = label;
    }
    labels.resize(count);
    std::ranges::reverse(labels);
  }

  Labels labels = {};
  PolicyPaths paths = {};
};

// Policies by labels that coincide where bytes nearly do.
GoodPolicies FindGoodPolicies(const NeedGraph& graph,
                              const NeedChoices& choices,
                              const std::vector<NeedStep>& steps) {
  const int64_t all =
      std::accumulate(choices.bytes.begin(), choices.bytes.end(), int64_t{0});
  const int64_t unit = all / kGrid + 1;
  NeedChoices rounded = choices;
  for (int64_t& bytes : rounded.bytes) bytes = (bytes + unit / 2) / unit;
  const std::vector<NeedStep> rounded_steps = StepsOf(graph, rounded);
  std::optional<WalkedPolicies> walked =
      WalkLabels(rounded_steps, steps, choices.most_ms, kFewLabels);
  if (!walked) return {};
  for (Label& label : walked->labels) label.kept_bytes = label.true_bytes;
  return {.labels = std::move(walked->labels),
          .paths = std::move(walked->paths)};
}

// Each policy costs at least what the lines say, which rises with what it
// discards. So a point with the bytes of a good policy, and the ms of the lines at
// the good policy before, stands for all policies between them. Good policies may be far
// apart: where blocks are equal, all of them run again at one price. Points between them
// then stand for a part each; the policy of such a point is the next good one.
NeedPolicies RelaxedPolicies(const NeedGraph& graph,
                             const NeedChoices& choices) {
  const std::vector<NeedStep> steps = StepsOf(graph, choices);
  double ms = 0;
  for (const NeedStep& step : steps) ms += step.ms;
  PricedWalk priced(steps);
  const std::vector<BestAtPrice> lines = Lines(priced, 1 + ms);
  if (lines.empty()) return {{}, choices.may_save.size(), true};
  GoodPolicies good = FindGoodPolicies(graph, choices, steps);
  const double far_apart = kFarApart * lines.front().label.ms;
  for (const BestAtPrice& line : lines) good.Add(line.label, line.moves);
  good.AddBetween(lines, steps, far_apart);
  good.Sort();
  const auto least_ms = [&](int64_t kept_bytes) {
    double least = 0;
    for (const BestAtPrice& line : lines) {
      least = std::max(least, line.LineAt(static_cast<double>(kept_bytes)));
    }
    return least;
  };
  NeedPolicies::List list;
  std::vector<PolicyPoint>& points = list.points;
  std::vector<MoveId>& moves = list.last_move;
  int64_t before = std::numeric_limits<int64_t>::max() / 2;
  const auto add = [&](int64_t kept_bytes, MoveId move) {
    const double at_least =
        points.empty() ? lines.back().label.ms : least_ms(before);
    before = kept_bytes;
    const int64_t bytes = choices.base_bytes - kept_bytes;
    if (!points.empty() && points.back().ms >= at_least) {
      points.back().bytes = bytes;
      moves.back() = move;
    } else {
      points.push_back({bytes, at_least});
      moves.push_back(move);
    }
  };
  for (const Label& label : good.labels) {
    if (!points.empty()) {
      const int64_t first = before;
      const double rise = least_ms(label.kept_bytes) - least_ms(first);
      const int64_t parts =
          rise > far_apart ? static_cast<int64_t>(rise / far_apart) + 1 : 1;
      for (int64_t k = 1; k < parts; ++k) {
        add(first + (label.kept_bytes - first) / parts * k, label.move);
      }
    }
    add(label.kept_bytes, label.move);
  }
  list.paths = std::move(good.paths);
  list.group_of_step = GroupsOf(steps);
  return {std::move(list), choices.may_save.size(), false};
}

// All policies that no other one beats; nothing where they are too many.
std::optional<NeedPolicies> AllPolicies(const std::vector<NeedStep>& steps,
                                        const NeedChoices& choices,
                                        const LabelLimits& limits,
                                        bool is_exact) {
  std::optional<WalkedPolicies> walked =
      WalkLabels(steps, steps, choices.most_ms, limits);
  if (!walked) return std::nullopt;
  NeedPolicies::List list;
  std::ranges::reverse(walked->labels);
  for (const Label& label : walked->labels) {
    list.points.push_back({choices.base_bytes - label.kept_bytes, label.ms});
    list.last_move.push_back(label.move);
  }
  list.paths = std::move(walked->paths);
  list.group_of_step = GroupsOf(steps);
  return NeedPolicies(std::move(list), choices.may_save.size(), is_exact);
}

// The choices with bytes rounded down, so that sums coincide: tensors come in
// multiples of each other, but for small ones.
NeedChoices OnGrid(NeedChoices choices) {
  const auto all = static_cast<double>(
      std::accumulate(choices.bytes.begin(), choices.bytes.end(), int64_t{0}));
  const auto lost_by = [&](int64_t unit) {
    int64_t sum = 0;
    for (const int64_t bytes : choices.bytes) sum += bytes % unit;
    return static_cast<double>(sum);
  };
  int64_t unit = 1;
  while (static_cast<double>(unit) < all &&
         lost_by(2 * unit) <= kMostLost * all)
    unit *= 2;
  for (int64_t& bytes : choices.bytes) bytes -= bytes % unit;
  return choices;
}

}  // namespace

NeedPolicies PoliciesOf(const NeedGraph& graph, const NeedChoices& choices) {
  const std::vector<NeedStep> steps = StepsOf(graph, choices);
  if (steps.size() <= kMostOperators) {
    if (auto policies =
            AllPolicies(steps, choices, kFewLabels, /*is_exact=*/true))
      return *policies;
  }
  const NeedChoices rounded = OnGrid(choices);
  const bool is_exact = rounded.bytes == choices.bytes;
  if (auto policies =
          AllPolicies(StepsOf(graph, rounded), rounded,
                      is_exact ? kManyLabels : kFewLabels, is_exact)) {
    return *policies;
  }
  return RelaxedPolicies(graph, choices);
}

}  // namespace acplan::problems
