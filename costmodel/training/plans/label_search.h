#pragma once

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "costmodel/training/plans/choice_labels.h"
#include "costmodel/training/plans/completion_bound.h"
#include "costmodel/training/plans/policy_choice.h"
#include "costmodel/training/plans/policy_relaxation.h"

namespace acplan::costmodel {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
// The rounding of seconds that are summed in another order.
inline constexpr double kTimeRounding = 1e-12;

// The problem of policy_choice.h for one bound t on max(l, w - max b). Policies of each kind
// are in ascending order of bytes.
class LabelSearch {
 public:
  using Offers = std::array<LayerOffer, 2>;

  LabelSearch(const Offers& offers, double share, ChoiceRoom room,
              const ChoiceEffort& effort)
      : offers_(offers),
        room_(room),
        relaxed_(RelaxAt(offers, share, room.bytes)),
        completions_(offers, share, room),
        meter_(effort) {}

  // Returns seconds that no choice is below, for this t or a larger one.
  double Bound() const { return relaxed_.seconds; }
  // Returns seconds that no choice is below for this t.
  double BoundHere() const { return completions_.Seconds(); }
  // Returns the seconds of the choice that has the cheapest policies; infinity if they do
  // not fit.
  double FirstChoice();
  // Finds the best choice below `cutoff` seconds; returns false if that exceeds the effort.
  bool Run(double cutoff);
  bool HasFound() const { return best_.record >= 0; }
  PolicyChoice Best() const;

 private:
  const LayerPolicy& PolicyOf(size_t kind, size_t policy) const {
    return offers_[kind].policies[policy];
  }
  bool IsLarge(size_t kind, size_t policy) const {
    return policy >= completions_.FirstLarge(kind);
  }
  bool IsTooLong(double excess) const {
    return relaxed_.seconds + excess >= best_.seconds * (1 - kTimeRounding);
  }
  // Returns whether no completion of a label is faster than the best choice.
  bool IsHopeless(const ChoiceLabel& label, size_t kind, size_t next) const {
    return completions_.Bound(label, kind, next) >=
           best_.seconds * (1 - kTimeRounding);
  }
  std::vector<ChoiceStep> StepsOf(size_t kind) const;
  // Sorts the steps, and returns the label that completes nothing if one may fit.
  std::optional<ChoiceLabel> Begin();
  // Returns the label with the sums of `count` more layers.
  ChoiceLabel Sum(ChoiceLabel label, size_t kind, size_t policy,
                  int64_t count) const;
  // Returns the label with `count` more layers as its last step.
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
  CompletionBound completions_;
  std::vector<ChoiceStep> steps_ = {};
  std::vector<ChoiceRecord> records_ = {};
  FoundChoice best_ = {};
  ChoiceMeter meter_;
};

}  // namespace acplan::costmodel
