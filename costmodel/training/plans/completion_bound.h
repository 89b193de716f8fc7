#pragma once

#include <array>
#include <span>
#include <vector>

#include "costmodel/training/plans/choice_labels.h"
#include "costmodel/training/plans/policy_choice.h"

namespace acplan::costmodel {

// The room of a search with a bound t on the bytes that a layer recomputes.
struct ChoiceRoom {
  double bytes = 0;    // for the tensors that layers keep for a microbatch
  double working = 0;  // the bound t
};

// A bound of the seconds of all completions of a label. Unlike the excesses of a search, it
// counts that one layer of each kind has a large policy, which keeps nearly all.
class CompletionBound {
 public:
  CompletionBound(const std::array<LayerOffer, 2>& offers, double share,
                  ChoiceRoom room);

  // Returns the kind's first policy with b >= w - t, the first one that is large.
  size_t FirstLarge(size_t kind) const { return first_large_[kind]; }

  // Returns seconds that no choice is below; infinity if nothing fits.
  double Seconds() const { return seconds_; }
  // Sets the order in which policies are taken.
  void SetSteps(std::span<const ChoiceStep> steps);
  // Returns seconds that no completion of a label of this kind is below, if its remaining
  // layers have policies of step `next` or later ones. Infinity if it lacks a large policy
  // that it can no longer get.
  double Bound(const ChoiceLabel& label, size_t kind, size_t next) const;

 private:
  // The least costs of a kind's policies from a step on: of all, and of large ones.
  struct Costs {
    double least = 0;
    double large = 0;
  };

  const std::array<LayerOffer, 2>& offers_;
  std::array<size_t, 2> first_large_ = {0, 0};
  double share_;
  double price_ = 0;    // of a byte
  double seconds_ = 0;  // of the relaxation
  double room_cost_ = 0;
  std::vector<Costs> costs_ = {};  // indexed by step
  // Indexed by kind: the least costs of the kinds that come after it.
  std::array<double, 2> later_kinds_ = {0, 0};
};

}  // namespace acplan::costmodel
