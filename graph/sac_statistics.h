#pragma once

#include <cstdint>
#include <vector>

#include "graph/profile.h"

namespace acplan::graph {

// Bytes of the operators that every policy must save: random operators under
// force_store_random, operators that are in place on themselves, and whatever
// is tied to one of these by an in-place pair or by the rule that random
// operators are saved or recomputed all together. (PyTorch's
// get_optimal_checkpointing_policy_per_module states these rules.) View-like
// operators are never saved: they count nothing and tie nothing.
int64_t ForcedSavedBytes(const SacStatistics& sac);

}  // namespace acplan::graph
