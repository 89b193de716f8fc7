#include "problems/engines/operator_checkpointing.h"

#include <algorithm>
#include <utility>

#include "graph/base/flag.h"
#include "solver/labels/group_cover.h"

namespace acplan::problems {

using solver::Cover;
using solver::CoverItem;
using solver::LeastCover;
using solver::SearchStatus;

using graph::GroupRule;
using graph::OperatorGroup;
using graph::OperatorGroups;

OperatorSolution SolveOperators(const OperatorGroups& groups, int64_t capacity,
                                const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  OperatorSolution solution;
  solution.engine = "labels";
  std::vector<CoverItem> items;
  std::vector<graph::GroupId> open;
  graph::IndexedVector<graph::GroupId, graph::Flag> save(groups.groups.size(),
                                                         false);
  int64_t saved_bytes = 0;
  for (const graph::GroupId g : groups.groups.ids()) {
    const OperatorGroup& group = groups.groups[g];
    if (group.rule == GroupRule::kRecompute) continue;
    save[g] = true;
    saved_bytes += group.memory;
    if (group.rule == GroupRule::kFree) {
      open.push_back(g);
      items.push_back({.bytes = group.memory, .ms = group.runtime});
    }
  }
  const Cover cover = LeastCover(items, saved_bytes - capacity, limits);
  solution.status = cover.status;
  solution.stopped_by = cover.stopped_by;
  solution.nodes = cover.labels;
  solution.seconds = stopwatch.Seconds();
  solution.bound_ms = groups.ForcedRuntime() + cover.bound_ms;
  if (cover.status == SearchStatus::kInfeasible) return solution;

  for (size_t k = 0; k < open.size(); ++k) {
    if (cover.take[k]) save[open[k]] = false;
  }
  OperatorPolicy& policy = solution.policy;
  policy.save.resize(groups.group_of.size());
  for (const graph::GroupId g : groups.groups.ids()) {
    const OperatorGroup& group = groups.groups[g];
    for (const int op : group.ops) policy.save[op] = save[g] ? 1 : 0;
    if (save[g]) {
      policy.saved_bytes += group.memory;
      policy.saved_ms += group.runtime;
    } else {
      policy.recompute_ms += group.runtime;
    }
  }
  if (solution.status == SearchStatus::kOptimal) {
    solution.bound_ms = policy.recompute_ms;
  }
  return solution;
}

}  // namespace acplan::problems
