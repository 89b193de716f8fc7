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

// Returns whether an operator of a call that starts at `start` keeps a storage.
bool KeepsAt(const graph::Trace& trace, const CheckpointedModule& unit,
             int32_t start, int place, int32_t storage) {
  if (!graph::Keeps(unit.decisions[place])) return false;
  const graph::TraceOperator& op = trace.operators[start + place];
  const auto kept = unit.kept_results.find(place);
  if (kept == unit.kept_results.end()) {
    return std::ranges::find(op.outputs, storage) != op.outputs.end();
  }
  return std::ranges::any_of(kept->second, [&](int32_t r) {
    return trace.tensors[op.results[r]].storage == storage;
  });
}

}  // namespace

CheckpointedModule UnitThatSaves(const TraceProblem& problem, int module_node,
                                 const std::vector<char>& saved) {
  const int candidate = problem.first_of_node[module_node];
  const OperatorGroups& groups = problem.groups[module_node];
  const int32_t module = CallOf(problem, candidate).module;
  if (problem.may_skip && !groups.groups.empty()) {
    std::vector<char> saves;
    for (const int g : groups.group_of) saves.push_back(saved[g]);
    return problem.need_driven->Of(module, saves);
  }
  CheckpointedModule unit = {.module = module};
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
  if (!group) return false;
  const std::vector<int>& ops =
      problem.groups[of.module_node].groups[*group].ops;
  if (!problem.may_skip) {
    return unit.decisions[ops.front()] == OperatorDecision::kSave;
  }
  const int32_t start = CallOf(problem, candidate).start;
  return std::ranges::any_of(ops, [&](int place) {
    return KeepsAt(*problem.trace, unit, start, place, storage);
  });
}

}  // namespace acplan::problems
