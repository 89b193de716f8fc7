#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "problems/trace/policies/need_steps.h"
#include "problems/trace/policies/policy_paths.h"

namespace acplan::problems {

// The policies of a call, or the beginnings of them, as labels of a walk over its steps.

// The most labels before a step, and the most that all steps extend.
struct LabelLimits {
  size_t labels, extended;
};

struct PolicyLabel {
  int64_t kept_bytes = 0;
  int64_t true_bytes = 0;  // as kept_bytes, but for rounding
  double ms = 0;
  MoveId move = graph::kNone;
  RecentUses recent = 0;
};

// Labels by bytes, of which none beats another.
using PolicyLabels = std::vector<PolicyLabel>;

struct WalkedPolicies {
  PolicyLabels labels = {};
  PolicyPaths paths = {};
};

// Returns all policies that cost at most so much and that no other one beats; nothing if
// there are too many labels. `true_steps`: the same with bytes that are not rounded.
std::optional<WalkedPolicies> WalkLabels(
    const std::vector<NeedStep>& steps, const std::vector<NeedStep>& true_steps,
    double most_ms, const LabelLimits& limits);

}  // namespace acplan::problems
