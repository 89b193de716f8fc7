#include "problems/trace/problem/unit_policies.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::OperatorGroups;

namespace {

GroupUse UseOf(OperatorDecision decision) {
  switch (decision) {
    case OperatorDecision::kSave:
    case OperatorDecision::kOffload:
      return GroupUse::kSaved;
    case OperatorDecision::kRecompute:
      return GroupUse::kRunsAgain;
    case OperatorDecision::kSkip:
      break;
  }
  return GroupUse::kNone;
}

// Returns whether an operator of a call keeps a storage.
bool KeepsAt(const graph::Trace& trace, const CheckpointedModule& unit,
             const graph::TraceCall& call, int place,
             graph::StorageId storage) {
  if (!graph::Keeps(unit.decisions[place])) return false;
  const graph::TraceOperator& op = trace.operators[call.AtPlace(place)];
  const auto results = unit.kept_results.find(place);
  if (results == unit.kept_results.end()) {
    return std::ranges::find(op.outputs, storage) != op.outputs.end();
  }
  return std::ranges::any_of(results->second, [&](int32_t r) {
    return trace.tensors[op.results[r]].storage == storage;
  });
}

}  // namespace

CheckpointedModule UnitThatSaves(const TraceProblem& problem,
                                 TreeNodeId module_node,
                                 const GroupFlags& is_saved) {
  const CandidateId candidate = problem.first_of_node[module_node];
  const OperatorGroups& groups = problem.groups[module_node];
  const graph::ModuleId module = CallOf(problem, candidate).module;
  if (problem.may_skip && !groups.groups.empty()) {
    std::vector<graph::Flag> saves;
    for (const graph::GroupId g : groups.group_of) saves.push_back(is_saved[g]);
    return problem.need_driven->PolicyFor(module, saves);
  }
  CheckpointedModule unit = {.module = module};
  for (const graph::GroupId g : groups.group_of) {
    unit.decisions.push_back(graph::SaveOrRecompute(is_saved[g]));
  }
  return unit;
}

GroupUses UsesOfGroups(const TraceProblem& problem, TreeNodeId module_node,
                       const CheckpointedModule& unit) {
  const OperatorGroups& groups = problem.groups[module_node];
  GroupUses uses(groups.groups.size(), GroupUse::kNone);
  for (size_t place = 0; place < unit.decisions.size(); ++place) {
    GroupUse& use = uses[groups.group_of[place]];
    use = std::max(use, UseOf(unit.decisions[place]));
  }
  return uses;
}

bool KeepsResult(const TraceProblem& problem, CandidateId candidate,
                 const CheckpointedModule& unit, graph::StorageId storage) {
  const CandidateCall& now = problem.candidates[candidate];
  const std::optional<graph::GroupId> group = GroupThatKeeps(now, storage);
  if (!group) return false;
  const std::vector<int>& ops =
      problem.groups[now.module_node].groups[*group].ops;
  if (!problem.may_skip) {
    return unit.decisions[ops.front()] == OperatorDecision::kSave;
  }
  const graph::TraceCall& call = CallOf(problem, candidate);
  return std::ranges::any_of(ops, [&](int place) {
    return KeepsAt(*problem.trace, unit, call, place, storage);
  });
}

}  // namespace acplan::problems
