#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/profile/profile.h"

namespace acplan::graph {

// The operators of a module that a selective-checkpointing policy may save or recompute on
// their own. The rules are those of PyTorch's get_optimal_checkpointing_policy_per_module:
// - a view-like operator is recomputed;
// - an in-place operator is treated as its parent; an operator that is in place on itself
//   (its tensor comes from outside of the module) is saved;
// - random operators are saved or recomputed all together; under
//   force_store_random they are saved.

// Side constraints: shell patterns for operator names ("mm",
// "_flash_attention*"; '*', '?' and '[...]').
struct OperatorPatterns {
  // Operators that match must be saved.
  std::vector<std::string> save;
  // Operators that match must be recomputed.
  std::vector<std::string> recompute;

  bool empty() const { return save.empty() && recompute.empty(); }
  bool operator==(const OperatorPatterns&) const = default;
};

// Returns whether `name` matches the whole of `pattern`.
bool MatchesPattern(const std::string& name, const std::string& pattern);

enum class GroupRule { kFree, kSave, kRecompute };

// Operators that every policy treats alike.
struct OperatorGroup {
  std::vector<int> ops;  // ascending
  int64_t memory = 0;    // bytes, the sum over its operators
  double runtime = 0;    // ms
  GroupRule rule = GroupRule::kFree;
};

enum class GroupId : int32_t {};  // in OperatorGroups::groups

struct OperatorGroups {
  // In the order of their first operators.
  IndexedVector<GroupId, OperatorGroup> groups;
  std::vector<GroupId> group_of;  // indexed by operator
  // If rules contradict each other, so that no policy keeps them all, the operators and
  // rules of the first case: "operator 3 'bernoulli_' is random and must be saved here,
  // operator 1 'view' is view-like and must be recomputed, and both are tied to each
  // other". A case that needs no pattern comes first. Empty otherwise. The rule of the
  // group in question is kSave.
  std::string contradiction;
  // If true, there is no contradiction without the patterns.
  bool contradicts_pattern = false;

  int64_t TotalBytes() const;
  // Returns the bytes of the groups that must be saved.
  int64_t ForcedBytes() const;
  // Returns the run-time of the groups that must be recomputed.
  double ForcedRuntime() const;
};

// Puts the operators into groups by union-find over in-place pairs and random operators.
// Statistics must be valid (ParseProfile).
OperatorGroups GroupOperators(const SacStatistics& sac,
                              const OperatorPatterns& patterns = {});

// Returns the bytes of the operators that every policy must save, for statistics that may
// contradict themselves: view-like operators do not count and do not tie others.
int64_t ForcedSavedBytes(const SacStatistics& sac);

}  // namespace acplan::graph
