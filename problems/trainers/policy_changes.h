#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "problems/language/language.h"
#include "problems/language/trainer_policy.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// A policy that differs from another one by a single change of a configuration.
struct PolicyChange {
  std::string words;  // "save aten::mm too"
  TrainerPolicy policy;
};

// The effect of a policy on a rank.
struct PolicyEffect {
  int64_t peak_bytes = 0;
  double recompute_ms = 0;
  double overhead = 0;  // CostMs() / the step without a policy
  double stall_ms = 0;  // what the step waits for the link

  double CostMs() const { return recompute_ms + stall_ms; }
};

// Returns nothing if PyTorch refuses the policy.
std::optional<PolicyEffect> EffectOf(const RestrictedTrace& restriction,
                                     const TrainerPolicy& policy);

// Returns the units of a policy as a plan has them.
std::vector<PlannedModule> ModulesOf(const RestrictedTrace& restriction,
                                     const TrainerPolicy& policy);

// Returns the first rule of plans, or of PyTorch's selective checkpoints, that a policy
// breaks. PyTorch then refuses to run it, or gradients are wrong.
std::optional<std::string> BrokenRuleOf(const RestrictedTrace& restriction,
                                        const Language& language,
                                        const TrainerPolicy& policy);

// Returns all single changes of a policy that its language can say: other blocks (another
// choice, another number of them, one class more or less), one name more or less among the
// saved ones, with the names that must go with it, with a link one that goes to the host, another one of the language's sets, and
// the early stop of checkpoints, if the policy has none. A policy with names beside those of
// the ties keeps them or loses one. `restriction` is that of the language.
std::vector<PolicyChange> SingleChanges(const RestrictedTrace& restriction,
                                        const Language& language,
                                        const TrainerPolicy& policy);

// The limit on policies.
struct PolicyLimit {
  int64_t usable_bytes = 0;
  // A further condition on policies, if there is one.
  std::function<bool(const TrainerPolicy&)> fits = {};

  bool Allows(const TrainerPolicy& policy, const PolicyEffect& effect) const {
    return effect.peak_bytes <= usable_bytes && (!fits || fits(policy));
  }
};

// The best single change of a policy.
struct BestChange {
  PolicyChange change;
  PolicyEffect effect;
};
struct BestChangeAnswer {
  std::optional<BestChange> best = {};
  int64_t change_count = 0;  // of those that were tried
};
// Finds the change that recomputes least within a limit, and then has the lowest peak, among
// those that keep the rules of plans; each one is simulated. A policy that fits is changed
// only for less recomputation, or for a lower peak with as much. `effect` is the policy's.
BestChangeAnswer FindBestChange(const RestrictedTrace& restriction,
                                const Language& language,
                                const TrainerPolicy& policy,
                                const PolicyEffect& effect,
                                const PolicyLimit& limit);

}  // namespace acplan::problems
