#include "problems/trace/unit_policies.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "problems/trace/holders.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::OperatorGroups;

namespace {

GroupUse UseOf(OperatorDecision decision) {
  switch (decision) {
    case OperatorDecision::kSave:
      return GroupUse::kSaved;
    case OperatorDecision::kRecompute:
      return GroupUse::kRunsAgain;
    case OperatorDecision::kSkip:
      break;
  }
  return GroupUse::kNone;
}

}  // namespace

CheckpointedModule UnitThatSaves(const TraceProblem& problem, int module_node,
                                 const std::vector<char>& saved) {
  const auto candidate = std::ranges::find(problem.candidates, module_node,
                                           &CandidateCall::module_node);
  const OperatorGroups& groups = problem.groups[module_node];
  CheckpointedModule unit = {
      .module = problem.trace->calls[candidate->call].module};
  for (const int g : groups.group_of) {
    unit.decisions.push_back(graph::SaveOrRecompute(saved[g] != 0));
  }
  return unit;
}

std::vector<GroupUse> UsesOfGroups(const TraceProblem& problem, int module_node,
                                   const CheckpointedModule& unit) {
  const OperatorGroups& groups = problem.groups[module_node];
  std::vector<GroupUse> uses(groups.groups.size(), GroupUse::kNone);
  for (size_t op = 0; op < unit.decisions.size(); ++op) {
    GroupUse& use = uses[groups.group_of[op]];
    use = std::max(use, UseOf(unit.decisions[op]));
  }
  return uses;
}

bool KeepsResult(const TraceProblem& problem, int candidate,
                 const CheckpointedModule& unit, int32_t storage) {
  const CandidateCall& of = problem.candidates[candidate];
  const std::optional<int> group = GroupThatKeeps(of, storage);
  const OperatorGroups& groups = problem.groups[of.module_node];
  return group && unit.decisions[groups.groups[*group].ops.front()] ==
                      OperatorDecision::kSave;
}

}  // namespace acplan::problems
