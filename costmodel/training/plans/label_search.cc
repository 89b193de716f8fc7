// Search. Policies are taken one by one, with the number of layers that have each. If there
// are fewer layers than policies, layers are taken one by one, each with any policy, and
// the last layer of all gets the best policy that fits beside a label. A label is such a
// beginning. It ends when its excesses reach the difference between the best choice and the
// bound, or when no completion with the large policies that it lacks is faster than the best
// choice (completion_bound.h). If one of two labels with as many layers has no more bytes and no more seconds by
// both measures, it stands for the other, as both can be completed alike. Policies with a
// large excess come first, so few labels are alive, and the cheapest policies complete each
// label at once, so a good choice is known early.
#include "costmodel/training/plans/label_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace acplan::costmodel {
namespace {

constexpr size_t kMostAdded = 1 << 18;  // labels that wait to be sorted

}  // namespace

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

// The kind that mixes two policies in the relaxation comes last.
std::optional<ChoiceLabel> LabelSearch::Begin() {
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
  completions_.SetSteps(steps_);
  const ChoiceLabel root{.open_layers = offers_[steps_.front().kind].layers};
  const double least =
      LeastBytesOf(steps_.front().kind, root.open_layers, false) +
      LeastBytesAfter(0);
  if (least > room_.bytes) return std::nullopt;
  return root;
}

ChoiceLabel LabelSearch::Sum(ChoiceLabel label, size_t kind, size_t policy,
                             int64_t count) const {
  if (count == 0) return label;
  const LayerPolicy& p = PolicyOf(kind, policy);
  const double number = static_cast<double>(count);
  label.open_layers -= count;
  label.bytes += number * p.bytes;
  label.gpu += number * p.gpu;
  label.host += number * p.host;
  label.has_large |= IsLarge(kind, policy);
  return label;
}

ChoiceLabel LabelSearch::With(ChoiceLabel label, size_t kind, size_t policy,
                              int64_t count) {
  if (count == 0) return label;
  label = Sum(label, kind, policy, count);
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
  return least + policies[completions_.FirstLarge(kind)].bytes -
         policies.front().bytes;
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
      if (IsHopeless(Sum(label, s.kind, s.policy, count), s.kind, step + 1)) {
        continue;
      }
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
  size_t first = last;
  while (first > 0 && steps_[first - 1].kind == kind) --first;
  std::vector<ChoiceLabel> added_labels;
  for (const ChoiceLabel& label : labels) {
    if (meter_.IsStopped(records_.size())) break;
    // The cheapest policies come last.
    for (size_t step = last + 1; step-- > first;) {
      const ChoiceStep& s = steps_[step];
      if (IsTooLong(label.excess + s.excess)) break;
      const double rest =
          LeastBytesOf(kind, label.open_layers - 1,
                       label.has_large || IsLarge(kind, s.policy));
      const double bytes = PolicyOf(kind, s.policy).bytes;
      if (label.bytes + bytes + rest + after > room_.bytes) continue;
      if (IsHopeless(Sum(label, kind, s.policy, 1), kind, first)) continue;
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
  for (size_t i = label.has_large ? 0 : completions_.FirstLarge(kind); i < none;
       ++i) {
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
  const size_t kind = steps_[last].kind;
  for (size_t step = first; step <= last; ++step) {
    std::vector<ChoiceLabel> next;
    if (step < last) {
      std::ranges::copy_if(labels, std::back_inserter(next),
                           [&](const ChoiceLabel& label) {
                             return !IsHopeless(label, kind, step + 1);
                           });
    }
    Continue(labels, step, next);
    labels = std::move(next);
    if (meter_.IsSpent(labels.size())) return false;
  }
  return true;
}

double LabelSearch::FirstChoice() {
  if (const std::optional<ChoiceLabel> root = Begin()) Complete(*root, 0);
  return best_.seconds;
}

bool LabelSearch::Run(double cutoff) {
  best_.seconds = cutoff;
  const std::optional<ChoiceLabel> root = Begin();
  if (!root) return true;
  Complete(*root, 0);
  std::vector<ChoiceLabel> labels = {*root};
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

}  // namespace acplan::costmodel
