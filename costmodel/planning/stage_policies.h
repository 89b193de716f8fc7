#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/planning/block_policies.h"
#include "costmodel/planning/plan_input.h"
#include "costmodel/planning/stage_choice.h"

namespace acplan::costmodel {

// The policies of a stage: how many blocks have which.
struct ChosenPolicies {
  StageChoice choice;
  std::vector<size_t> policies;  // that were to choose from, a count each
};

// Policies to choose from, by ascending bytes, and what each costs, a block.
struct PolicyOffer {
  std::span<const BlockPolicy> policies;
  std::span<const double> costs;
};

// Chooses the cheapest policies of a stage's blocks that fit into both tiers of
// memory. What adds up to `cutoff` need not be cheapest.
ChosenPolicies ChoosePolicies(const PlanInput& input, int64_t stage,
                              const PolicyOffer& offer, double cutoff);

// The stages after the first.
struct LaterStages {
  std::vector<ChosenPolicies> stages;
  bool is_feasible = true;
  double bound = 0;  // of the seconds that they fill
};

// Seconds that the stages after the first fill at least, whatever is chosen.
double LeastLaterFill(const PlanInput& input,
                      std::span<const PolicyTimes> times);

// Chooses the policies of each stage after the first. What fills `cutoff` seconds
// or more need not be best.
LaterStages ChooseLaterStages(const PlanInput& input,
                              std::span<const PolicyTimes> times,
                              double cutoff);

}  // namespace acplan::costmodel
