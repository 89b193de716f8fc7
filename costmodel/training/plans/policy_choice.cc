// A knapsack with many equal items and two measures of time.
//
// The bytes that a layer recomputes in its backward pass depend on the layer that keeps
// most. So the problem is solved for each bound t on max(l, w - max b): then each kind
// requires one policy with b >= w - t, and the others have (R - t) / f bytes. Each of these
// problems is a restriction of the original, and one of them contains the optimum.
//
// Bound. For a share s of the GPU's and 1 - s of the host's seconds and a price m of a
// byte, each kind of layer has a cheapest policy by c = s g + (1 - s) h + m b. Let C be the
// sum of these costs: then max(G, H) >= s G + (1 - s) H >= C - m x room. For a given s the
// best m is the slope of the lower hull where the room ends; s is found by golden section
// (any s is valid). A policy's excess is its c minus that of the cheapest, so a choice
// costs at least the bound plus the excesses of all its layers.
//
// Search. Policies are taken one by one, with the number of layers that have each. If there
// are fewer layers than policies, layers are taken one by one, each with any policy, and
// the last layer of all gets the best policy that fits beside a label. A label is such a
// beginning. It ends when its excesses reach the difference between the best choice and the
// bound. If one of two labels with as many layers has no more bytes and no more seconds by
// both measures, it stands for the other, as both can be completed alike. Policies with a
// large excess come first, so few labels are alive, and the cheapest policies complete each
// label at once, so a good choice is known early.
#include "costmodel/training/plans/policy_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "costmodel/training/plans/choice_labels.h"
#include "costmodel/training/plans/policy_relaxation.h"

namespace acplan::costmodel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kMostAdded = 1 << 18;  // labels that wait to be sorted
// The rounding of seconds that are summed in another order.
constexpr double kTimeRounding = 1e-12;

using Offers = std::array<LayerOffer, 2>;

// Returns whether the GPU (or, if not `is_gpu`, the host) is the slower one under every
// policy.
bool TakesLonger(const Offers& offers, bool is_gpu) {
  return std::ranges::all_of(offers, [&](const LayerOffer& offer) {
    return offer.layers == 0 ||
           std::ranges::all_of(offer.policies, [&](const LayerPolicy& policy) {
             return is_gpu ? policy.gpu >= policy.host
                           : policy.host >= policy.gpu;
           });
  });
}

// Returns the share of the GPU's seconds that gives the best bound.
double BestShare(const Offers& offers, double room) {
  if (TakesLonger(offers, true)) return 1;
  if (TakesLonger(offers, false)) return 0;
  constexpr double kGolden = .6180339887498949;
  double low = 0;
  double high = 1;
  for (int i = 0; i < 40; ++i) {
    const double left_share = high - kGolden * (high - low);
    const double right_share = low + kGolden * (high - low);
    const bool is_left = RelaxAt(offers, left_share, room).seconds >
                         RelaxAt(offers, right_share, room).seconds;
    (is_left ? high : low) = is_left ? right_share : left_share;
  }
  const double middle = (low + high) / 2;
  double best = middle;
  for (const double share : {0.0, 1.0}) {
    if (RelaxAt(offers, share, room).seconds >=
        RelaxAt(offers, best, room).seconds) {
      best = share;
    }
  }
  return best;
}

struct ChoiceRoom {
  double bytes = 0;    // for the tensors that layers keep for a microbatch
  double working = 0;  // the bound t
};

// The problem for one bound t.
class LabelSearch {
 public:
  LabelSearch(const Offers& offers, double share, ChoiceRoom room,
              const ChoiceEffort& effort)
      : offers_(offers),
        room_(room),
        relaxed_(RelaxAt(offers, share, room.bytes)),
        meter_(effort) {
    for (size_t kind = 0; kind < 2; ++kind) {
      if (offers[kind].layers == 0) continue;
      while (!IsLarge(kind, first_large_[kind])) ++first_large_[kind];
    }
  }

  double Bound() const { return relaxed_.seconds; }
  // Finds the best choice below `cutoff` seconds; returns false if that exceeds the effort.
  bool Run(double cutoff);
  bool HasFound() const { return best_.record >= 0; }
  PolicyChoice Best() const;

 private:
  const LayerPolicy& PolicyOf(size_t kind, size_t policy) const {
    return offers_[kind].policies[policy];
  }
  bool IsLarge(size_t kind, size_t policy) const {
    return PolicyOf(kind, policy).bytes >=
           offers_[kind].whole_bytes - room_.working - kByteRounding;
  }
  bool IsTooLong(double excess) const {
    return relaxed_.seconds + excess >= best_.seconds * (1 - kTimeRounding);
  }
  std::vector<ChoiceStep> StepsOf(size_t kind) const;
  void Order();
  ChoiceLabel With(ChoiceLabel label, size_t kind, size_t policy,
                   int64_t count);
  void Continue(const std::vector<ChoiceLabel>& labels, size_t step,
                std::vector<ChoiceLabel>& next);
  void AddLayer(const std::vector<ChoiceLabel>& labels, size_t last,
                std::vector<ChoiceLabel>& next);
  void Keep(std::vector<ChoiceLabel>& added_labels, size_t most,
            std::vector<ChoiceLabel>& labels);
  void TakeLastLayer(const ChoiceLabel& label);
  bool RunByLayers(std::vector<ChoiceLabel>& labels, size_t last);
  bool RunByPolicies(std::vector<ChoiceLabel>& labels, size_t first,
                     size_t last);
  // Returns the least bytes of the kinds that come after this step's kind.
  double LeastBytesAfter(size_t step) const;
  double LeastBytesOf(size_t kind, int64_t layers, bool has_large) const;
  void Complete(ChoiceLabel label, size_t step);
  bool FillKind(ChoiceLabel& label, size_t last_step);
  bool Take(ChoiceLabel label);

  const Offers& offers_;
  ChoiceRoom room_;
  Relaxation relaxed_;
  // Each kind's first policy with b >= w - t.
  std::array<size_t, 2> first_large_ = {0, 0};
  std::vector<ChoiceStep> steps_ = {};
  std::vector<ChoiceRecord> records_ = {};
  FoundChoice best_ = {};
  ChoiceMeter meter_;
};

std::vector<ChoiceStep> LabelSearch::StepsOf(size_t kind) const {
  const std::span<const LayerPolicy> policies = offers_[kind].policies;
  const auto cost = [&](const LayerPolicy& p) {
    return relaxed_.share * p.gpu + (1 - relaxed_.share) * p.host +
           relaxed_.price * p.bytes;
  };
  double least = kNever;
  for (const LayerPolicy& policy : policies) {
    least = std::min(least, cost(policy));
  }
  std::vector<ChoiceStep> steps;
  for (size_t i = 0; i < policies.size(); ++i) {
    steps.push_back({kind, i, cost(policies[i]) - least});
  }
  std::ranges::sort(steps, [](const ChoiceStep& a, const ChoiceStep& b) {
    return std::tie(a.excess, a.policy) > std::tie(b.excess, b.policy);
  });
  steps.back().is_last = true;
  return steps;
}

// Sorts the steps. The kind that mixes two policies in the relaxation comes last.
void LabelSearch::Order() {
  std::vector<std::vector<ChoiceStep>> kinds;
  for (size_t kind = 0; kind < 2; ++kind) {
    if (offers_[kind].layers > 0) kinds.push_back(StepsOf(kind));
  }
  const auto second = [](const std::vector<ChoiceStep>& steps) {
    return steps.size() < 2 ? kNever : steps[steps.size() - 2].excess;
  };
  std::ranges::stable_sort(kinds, std::greater<>(), second);
  for (const std::vector<ChoiceStep>& steps : kinds) {
    steps_.insert(steps_.end(), steps.begin(), steps.end());
  }
}

ChoiceLabel LabelSearch::With(ChoiceLabel label, size_t kind, size_t policy,
                              int64_t count) {
  if (count == 0) return label;
  const LayerPolicy& p = PolicyOf(kind, policy);
  const double number = static_cast<double>(count);
  label.open_layers -= count;
  label.bytes += number * p.bytes;
  label.gpu += number * p.gpu;
  label.host += number * p.host;
  label.has_large |= IsLarge(kind, policy);
  RecordLast(label, records_);
  label.kind = static_cast<int32_t>(kind);
  label.policy = static_cast<int32_t>(policy);
  label.count = static_cast<int32_t>(count);
  return label;
}

double LabelSearch::LeastBytesAfter(size_t step) const {
  const size_t kind = steps_[step].kind;
  if (steps_.back().kind == kind) return 0;
  const LayerOffer& other = offers_[steps_.back().kind];
  return LeastBytesOf(steps_.back().kind, other.layers, false);
}

// Returns the least bytes of layers, one of which must be large unless one is already.
double LabelSearch::LeastBytesOf(size_t kind, int64_t layers,
                                 bool has_large) const {
  const std::span<const LayerPolicy> policies = offers_[kind].policies;
  const double least = static_cast<double>(layers) * policies.front().bytes;
  if (has_large || layers == 0) return least;
  return least + policies[first_large_[kind]].bytes - policies.front().bytes;
}

// Moves `added_labels` to `labels` if it has more than `most` labels.
void LabelSearch::Keep(std::vector<ChoiceLabel>& added_labels, size_t most,
                       std::vector<ChoiceLabel>& labels) {
  if (added_labels.size() <= most) return;
  AddUndominated(std::move(added_labels), labels);
  added_labels.clear();
  for (ChoiceLabel& label : labels) RecordLast(label, records_);
}

// Adds labels in which at least one layer has the policy of this step. (Labels without such
// a layer were checked for the remaining room when they were made.)
void LabelSearch::Continue(const std::vector<ChoiceLabel>& labels, size_t step,
                           std::vector<ChoiceLabel>& next) {
  const ChoiceStep& s = steps_[step];
  const double bytes = PolicyOf(s.kind, s.policy).bytes;
  const double after = LeastBytesAfter(step);
  const bool is_large = IsLarge(s.kind, s.policy);
  std::vector<ChoiceLabel> added_labels;
  for (const ChoiceLabel& label : labels) {
    if (meter_.IsStopped(records_.size())) break;
    for (int64_t count = s.is_last ? label.open_layers : 1;
         count <= label.open_layers; ++count) {
      const double number = static_cast<double>(count);
      if (IsTooLong(label.excess + number * s.excess)) break;
      const double rest =
          LeastBytesOf(s.kind, label.open_layers - count,
                       label.has_large || (count > 0 && is_large));
      if (label.bytes + number * bytes + rest + after > room_.bytes) break;
      added_labels.push_back(With(label, s.kind, s.policy, count));
      added_labels.back().excess += number * s.excess;
      if (count > 0) Complete(added_labels.back(), step);
    }
    Keep(added_labels, kMostAdded, next);
  }
  Keep(added_labels, 0, next);
}

// Gives the remaining layers of a kind its cheapest policy (`last_step`) and the next
// cheapest one, or the policy that keeps least.
bool LabelSearch::FillKind(ChoiceLabel& label, size_t last_step) {
  const size_t kind = steps_[last_step].kind;
  const std::span<const LayerPolicy> policies = offers_[kind].policies;
  if (!label.has_large && label.open_layers > 0) {
    const double others = LeastBytesOf(kind, label.open_layers - 1, true) +
                          LeastBytesAfter(last_step);
    const double most = room_.bytes - label.bytes - others;
    size_t step = last_step;
    while (!IsLarge(kind, steps_[step].policy) ||
           policies[steps_[step].policy].bytes > most) {
      if (step == 0 || steps_[step - 1].kind != kind) return false;
      --step;
    }
    label = With(label, kind, steps_[step].policy, 1);
  }
  const bool has_two = policies.size() > 1;
  size_t small = steps_[last_step].policy;
  size_t large = has_two ? steps_[last_step - 1].policy : small;
  if (small > large) std::swap(small, large);
  const double room = room_.bytes - label.bytes - LeastBytesAfter(last_step);
  const double layers = static_cast<double>(label.open_layers);
  if (layers * policies[small].bytes > room) small = large = 0;
  const double spare = room - layers * policies[small].bytes;
  if (spare < 0) return false;
  int64_t count = 0;
  if (large != small) {
    count = static_cast<int64_t>(std::min(
        layers,
        std::floor(spare / (policies[large].bytes - policies[small].bytes))));
  }
  label = With(label, kind, large, count);
  label = With(label, kind, small, label.open_layers);
  return label.has_large;
}

// Completes a label by the cheapest policies. Leaves no records if that is no improvement.
void LabelSearch::Complete(ChoiceLabel label, size_t step) {
  const size_t records = records_.size();
  while (!steps_[step].is_last) ++step;
  bool is_filled = FillKind(label, step);
  if (is_filled && step + 1 < steps_.size()) {
    label.open_layers = offers_[steps_.back().kind].layers;
    label.has_large = false;
    is_filled = FillKind(label, steps_.size() - 1);
  }
  if (!is_filled || !Take(label)) records_.resize(records);
}

// Takes the label as the best choice if it is; returns whether it is.
bool LabelSearch::Take(ChoiceLabel label) {
  const double seconds = std::max(label.gpu, label.host);
  if (label.bytes > room_.bytes || seconds >= best_.seconds) return false;
  RecordLast(label, records_);
  best_.seconds = seconds;
  best_.record = label.record;
  return true;
}

// Adds labels with one more layer of the kind that ends at step `last`, with any policy.
void LabelSearch::AddLayer(const std::vector<ChoiceLabel>& labels, size_t last,
                           std::vector<ChoiceLabel>& next) {
  const double after = LeastBytesAfter(last);
  const size_t kind = steps_[last].kind;
  std::vector<ChoiceLabel> added_labels;
  for (const ChoiceLabel& label : labels) {
    if (meter_.IsStopped(records_.size())) break;
    // The cheapest policies come last.
    for (size_t step = last + 1; step-- > 0 && steps_[step].kind == kind;) {
      const ChoiceStep& s = steps_[step];
      if (IsTooLong(label.excess + s.excess)) break;
      const double rest =
          LeastBytesOf(kind, label.open_layers - 1,
                       label.has_large || IsLarge(kind, s.policy));
      const double bytes = PolicyOf(kind, s.policy).bytes;
      if (label.bytes + bytes + rest + after > room_.bytes) continue;
      added_labels.push_back(With(label, kind, s.policy, 1));
      added_labels.back().excess += s.excess;
    }
    Keep(added_labels, kMostAdded, next);
  }
  Keep(added_labels, 0, next);
}

// Takes the best completion of a label that lacks one layer of the last kind.
void LabelSearch::TakeLastLayer(const ChoiceLabel& label) {
  const size_t kind = steps_.back().kind;
  const std::span<const LayerPolicy> policies = offers_[kind].policies;
  const size_t none = policies.size();
  size_t best = none;
  double least = best_.seconds;
  for (size_t i = label.has_large ? 0 : first_large_[kind]; i < none; ++i) {
    const LayerPolicy& policy = policies[i];
    if (label.bytes + policy.bytes > room_.bytes) break;  // ascending
    const double seconds =
        std::max(label.gpu + policy.gpu, label.host + policy.host);
    if (seconds >= least) continue;
    least = seconds;
    best = i;
  }
  if (best < none) Take(With(label, kind, best, 1));
}

bool LabelSearch::RunByLayers(std::vector<ChoiceLabel>& labels, size_t last) {
  const int64_t layers = offers_[steps_[last].kind].layers;
  for (int64_t i = 0; i < layers; ++i) {
    if (i + 1 == layers && last + 1 == steps_.size()) {
      for (const ChoiceLabel& label : labels) {
        if (meter_.IsStopped(records_.size())) return false;
        TakeLastLayer(label);
      }
      labels.clear();
      return true;
    }
    std::vector<ChoiceLabel> next;
    AddLayer(labels, last, next);
    labels = std::move(next);
    if (meter_.IsSpent(labels.size())) return false;
    for (const ChoiceLabel& label : labels) Complete(label, last);
  }
  return true;
}

bool LabelSearch::RunByPolicies(std::vector<ChoiceLabel>& labels, size_t first,
                                size_t last) {
  for (size_t step = first; step <= last; ++step) {
    std::vector<ChoiceLabel> next;
    if (step < last) next = labels;
    Continue(labels, step, next);
    labels = std::move(next);
    if (meter_.IsSpent(labels.size())) return false;
  }
  return true;
}

bool LabelSearch::Run(double cutoff) {
  best_.seconds = cutoff;
  Order();
  ChoiceLabel root{.open_layers = offers_[steps_.front().kind].layers};
  if (LeastBytesOf(steps_.front().kind, root.open_layers, false) +
          LeastBytesAfter(0) >
      room_.bytes) {
    return true;
  }
  Complete(root, 0);
  std::vector<ChoiceLabel> labels = {root};
  for (size_t first = 0; first < steps_.size();) {
    size_t last = first;
    while (!steps_[last].is_last) ++last;
    const auto policies = static_cast<int64_t>(last - first + 1);
    const bool is_complete =
        labels.empty() || (labels.front().open_layers < policies
                               ? RunByLayers(labels, last)
                               : RunByPolicies(labels, first, last));
    if (!is_complete) return false;
    std::erase_if(labels,
                  [](const ChoiceLabel& label) { return !label.has_large; });
    first = last + 1;
    if (first == steps_.size()) break;
    for (ChoiceLabel& label : labels) {
      label.open_layers = offers_[steps_[first].kind].layers;
      label.has_large = false;
    }
  }
  for (const ChoiceLabel& label : labels) Take(label);
  return true;
}

PolicyChoice LabelSearch::Best() const {
  PolicyChoice choice{.is_feasible = true, .seconds = best_.seconds};
  for (size_t kind = 0; kind < 2; ++kind) {
    if (offers_[kind].layers == 0) continue;
    choice.counts[kind].assign(offers_[kind].policies.size(), 0);
  }
  for (int32_t i = best_.record; i >= 0; i = records_[i].before) {
    choice.counts[records_[i].kind][records_[i].policy] += records_[i].count;
  }
  return choice;
}

// Returns all bounds on recomputed bytes that some policy can meet.
std::vector<double> BoundsOfWorking(const Offers& offers, double logits) {
  std::vector<double> bounds;
  for (const LayerOffer& offer : offers) {
    if (offer.layers == 0) continue;
    for (const LayerPolicy& policy : offer.policies) {
      bounds.push_back(std::max(logits, offer.whole_bytes - policy.bytes));
    }
  }
  std::ranges::sort(bounds);
  bounds.erase(std::ranges::unique(bounds).begin(), bounds.end());
  return bounds;
}

bool HasPolicyWithin(const Offers& offers, double working) {
  return std::ranges::all_of(offers, [&](const LayerOffer& offer) {
    return offer.layers == 0 || offer.policies.back().bytes >=
                                    offer.whole_bytes - working - kByteRounding;
  });
}

}  // namespace

PolicyChoice ChooseLayerPolicies(const Offers& stated, const StageRoom& room,
                                 const ChoiceEffort& effort) {
  // If the host never takes longer, its seconds would only distinguish labels needlessly.
  Offers offers = stated;
  std::array<std::vector<LayerPolicy>, 2> without_host;
  if (TakesLonger(offers, true)) {
    for (size_t kind = 0; kind < 2; ++kind) {
      without_host[kind].assign(offers[kind].policies.begin(),
                                offers[kind].policies.end());
      for (LayerPolicy& policy : without_host[kind]) policy.host = 0;
      offers[kind].policies = without_host[kind];
    }
  }
  PolicyChoice best{.seconds = kNever, .bound = kNever};
  if (offers[0].layers + offers[1].layers == 0) {
    if (room.logits > room.bytes + kByteRounding) return best;
    return {.is_feasible = true};
  }
  std::optional<double> share;
  for (const double working : BoundsOfWorking(offers, room.logits)) {
    if (!HasPolicyWithin(offers, working)) continue;
    const double bytes =
        (room.bytes + kByteRounding - working) / room.in_flight;
    if (!share) share = BestShare(offers, bytes);
    LabelSearch search(offers, *share, {bytes, working}, effort);
    const double bound = search.Bound();
    if (bound >= best.seconds * (1 - kTimeRounding)) break;
    const bool is_complete = search.Run(best.seconds);
    const double open_bound =
        is_complete ? best.bound : std::min(best.bound, bound);
    const bool is_optimal = best.is_optimal && is_complete;
    if (search.HasFound()) best = search.Best();
    best.bound = open_bound;
    best.is_optimal = is_optimal;
  }
  best.bound = std::min(best.bound, best.seconds);
  return best;
}

}  // namespace acplan::costmodel
