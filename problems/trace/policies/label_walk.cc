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
#include "problems/trace/policies/label_walk.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "problems/trace/policies/need_policies.h"
#include "solver/stop.h"

namespace acplan::problems {

namespace {

// Returns what no label of both beats.
PolicyLabels Best(const PolicyLabels& a, const PolicyLabels& b) {
  PolicyLabels merged;
  merged.reserve(a.size() + b.size());
  std::ranges::merge(a, b, std::back_inserter(merged),
                     [](const PolicyLabel& x, const PolicyLabel& y) {
                       return x.kept_bytes != y.kept_bytes
                                  ? x.kept_bytes < y.kept_bytes
                                  : x.ms < y.ms;
                     });
  size_t count = 0;
  for (const PolicyLabel& label : merged) {
    // Sums in another order are the same.
    if (count > 0 && label.ms >= merged[count - 1].ms * (1 - 1e-12)) continue;
    merged[count++] = label;
  }
  merged.resize(count);
  return merged;
}

class LabelWalk {
 public:
  // `true_steps`: the same with bytes that are not rounded.
  LabelWalk(const std::vector<NeedStep>& steps,
            const std::vector<NeedStep>& true_steps, double most_ms,
            const LabelLimits& limits)
      : steps_(steps),
        true_steps_(true_steps),
        limits_(limits),
        most_ms_(most_ms * (1 + 1e-9)) {}

  // All policies; nothing where there are too many labels.
  std::optional<PolicyLabels> Run() {
    states_[0] = {PolicyLabel()};
    for (size_t k = 0; k < steps_.size(); ++k) {
      solver::StopIfDue();
      next_.clear();
      size_t count = 0;
      for (auto& [state, labels] : states_) {
        count += labels.size();
        Take(k, state | steps_[k].requests, std::move(labels));
      }
      if (count > limits_.labels || extended_ > limits_.extended)
        return std::nullopt;
      if (PolicyPaths::EndsMove(k, steps_.size())) EndMoves();
      states_ = std::move(next_);
    }
    PolicyLabels all;
    for (const auto& [state, labels] : states_) all = Best(all, labels);
    return all;
  }

  PolicyPaths TakePaths() { return std::move(paths_); }

 private:
  void Take(size_t k, uint64_t state, PolicyLabels labels) {
    const NeedStep& step = steps_[k];
    if (!step.IsNeeded(state)) {
      Add(step.AfterNothing(state), std::move(labels));
      return;
    }
    if (step.MaySave(state)) {
      Add(step.AfterSave(state),
          Extended(labels,
                   {.kept_bytes = step.KeptBytes(state),
                    .true_bytes = true_steps_[k].KeptBytes(state)},
                   PolicyPaths::With(0, k, GroupUse::kSaved)));
    }
    if (step.MayRerun(state)) {
      Add(step.AfterRerun(state),
          Extended(std::move(labels), {.ms = step.ms},
                   PolicyPaths::With(0, k, GroupUse::kRunsAgain)));
    }
  }

  PolicyLabels Extended(PolicyLabels labels, const PolicyLabel& more,
                        RecentUses use) {
    // The fewer bytes, the more ms.
    const auto dear =
        std::ranges::find_if(labels, [&](const PolicyLabel& label) {
          return label.ms + more.ms <= most_ms_;
        });
    labels.erase(labels.begin(), dear);
    for (PolicyLabel& label : labels) {
      label.kept_bytes += more.kept_bytes;
      label.true_bytes += more.true_bytes;
      label.ms += more.ms;
      label.recent |= use;
    }
    extended_ += labels.size();
    return labels;
  }

  void Add(uint64_t state, PolicyLabels labels) {
    if (labels.empty()) return;
    PolicyLabels& best = next_[state];
    best = best.empty() ? std::move(labels) : Best(best, labels);
  }

  void EndMoves() {
    for (auto& [state, labels] : next_) {
      for (PolicyLabel& label : labels) {
        label.move = paths_.Add(label.move, label.recent);
        label.recent = 0;
      }
    }
  }

  const std::vector<NeedStep>& steps_;
  const std::vector<NeedStep>& true_steps_;
  const LabelLimits limits_;
  const double most_ms_;
  std::map<uint64_t, PolicyLabels> states_, next_;
  PolicyPaths paths_;
  size_t extended_ = 0;
};

}  // namespace

std::optional<WalkedPolicies> WalkLabels(
    const std::vector<NeedStep>& steps, const std::vector<NeedStep>& true_steps,
    double most_ms, const LabelLimits& limits) {
  LabelWalk walk(steps, true_steps, most_ms, limits);
  std::optional<PolicyLabels> labels = walk.Run();
  if (!labels) return std::nullopt;
  return WalkedPolicies{std::move(*labels), walk.TakePaths()};
}

}  // namespace acplan::problems
