#include "problems/trace/policies/policy_paths.h"

#include <algorithm>

namespace acplan::problems {

std::vector<RecentUses> PolicyPaths::MovesOf(MoveId last) const {
  std::vector<RecentUses> path;
  for (MoveId m = last; m != graph::kNone; m = moves_[m].previous) {
    path.push_back(moves_[m].uses);
  }
  std::ranges::reverse(path);
  return path;
}

MoveId PolicyPaths::AddPath(const std::vector<RecentUses>& moves) {
  MoveId last = graph::kNone;
  for (const RecentUses uses : moves) last = Add(last, uses);
  return last;
}

GroupUses PolicyPaths::UsesOf(MoveId last,
                              const std::vector<graph::GroupId>& group_of_step,
                              size_t groups) const {
  GroupUses uses(groups, GroupUse::kNone);
  const std::vector<RecentUses> moves = MovesOf(last);
  if (moves.empty()) return uses;
  for (size_t k = group_of_step.size(); k-- > 0;) {
    const GroupUse use = UseOf(moves, k);
    if (use != GroupUse::kNone) uses[group_of_step[k]] = use;
  }
  return uses;
}

}  // namespace acplan::problems
