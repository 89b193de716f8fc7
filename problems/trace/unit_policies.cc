#include "problems/trace/unit_policies.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "problems/trace/holders.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorGroups;

CheckpointedModule UnitThatSaves(const TraceProblem& problem, int module_node,
                                 const std::vector<char>& saved) {
  const auto candidate = std::ranges::find(problem.candidates, module_node,
                                           &CandidateCall::module_node);
  const OperatorGroups& groups = problem.groups[module_node];
  CheckpointedModule unit = {
      .module = problem.trace->calls[candidate->call].module};
  for (const int g : groups.group_of) unit.save.push_back(saved[g]);
  return unit;
}

std::vector<GroupUse> UsesOfGroups(const TraceProblem& problem, int module_node,
                                   const CheckpointedModule& unit) {
  const OperatorGroups& groups = problem.groups[module_node];
  std::vector<GroupUse> uses(groups.groups.size(), GroupUse::kNone);
  for (size_t op = 0; op < unit.save.size(); ++op) {
    GroupUse& use = uses[groups.group_of[op]];
    use = unit.save[op] ? GroupUse::kSaved : GroupUse::kRunsAgain;
  }
  return uses;
}

bool KeepsResult(const TraceProblem& problem, int candidate,
                 const CheckpointedModule& unit, int32_t storage) {
  const CandidateCall& of = problem.candidates[candidate];
  const std::optional<int> group = GroupThatKeeps(of, storage);
  const OperatorGroups& groups = problem.groups[of.module_node];
  return group && unit.save[groups.groups[*group].ops.front()] != 0;
}

}  // namespace acplan::problems
