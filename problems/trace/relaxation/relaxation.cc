// How the relaxation of a trace problem is made.
//
// 1. decisions.h: what the decisions say of each candidate.
// 2. counted_bytes.h: what the witnesses hold at each time without units, b(t),
//    and for each candidate what it releases as a unit (a_c + the bytes of its
//    groups) and what it keeps: arguments in its frame, results that its policy
//    may save.
// 3. Records: the time of a node's record is any that the walk places there; the
//    record asks for the largest b(t) of these. A plan that meets the budget at
//    every time meets the record, since the units that the walk has passed by then
//    include all that are before the time.
// 4. running_bytes.h: in place of the records in its subtree, what is in use
//    while a unit runs and runs again.
// 5. Policies: a group that costs nothing is recomputed; groups with equal bytes
//    and run-times are one kind, of which a policy recomputes a number.
//
//    Where operators may be skipped: all policies that no other one beats, as
//    points (need_policies.h).
//
// Rounding keeps the bound: witnesses with shares count down, releases up.
//
// Example. A block runs mm, gelu and mm; autograd saves its input, the result x of
// the first and the result y of the second operator, 8 MiB each. Let the witnesses
// of x and y be these saved tensors, and that of the input the block's frame. Then
// b(t) counts x and y from when they are made until backward lets go of them. As a
// unit that saves nothing the block releases both and keeps its input: D = 16 - 8
// MiB. Each of the groups {mm} and {gelu} has m = 8 MiB, so a = 8 - 16 = -8 MiB.
#include "problems/trace/relaxation/relaxation.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include "problems/engines/labels/completion_bound.h"
#include "problems/model/joint_solution.h"
#include "problems/model/unit_forest.h"
#include "problems/trace/policies/sharp_policies.h"
#include "problems/trace/problem/holders.h"
#include "problems/trace/problem/unit_policies.h"
#include "problems/trace/relaxation/counted_bytes.h"
#include "problems/trace/relaxation/running_bytes.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorGroups;

namespace {

using Release = CountedBytes::Release;

// Returns the most calls that as many modules have: in the relaxation each call of a
// module is a unit.
int MostCallsOf(const TraceProblem& problem, int modules) {
  std::map<TreeNodeId, int> calls_of;
  for (const CandidateCall& candidate : problem.candidates) {
    ++calls_of[candidate.module_node];
  }
  std::vector<int> calls;
  for (const auto& [module, count] : calls_of) calls.push_back(count);
  std::ranges::sort(calls, std::greater<>());
  calls.resize(std::min(calls.size(), static_cast<size_t>(modules)));
  return std::accumulate(calls.begin(), calls.end(), 0);
}

// Returns for each group the bytes that saving it keeps.
graph::IndexedVector<graph::GroupId, int64_t> BytesOfGroups(
    const TraceProblem& problem, const CountedBytes& witnessed, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  graph::IndexedVector<graph::GroupId, int64_t> bytes(
      problem.groups[candidate.module_node].groups.size(), 0);
  const auto add = [&](const Release& release) {
    const std::optional<graph::GroupId> group =
        GroupThatKeeps(candidate, release.storage);
    if (group) bytes[*group] += release.bytes;
  };
  std::ranges::for_each(witnessed.released[c], add);
  std::ranges::for_each(witnessed.kept_results[c], add);
  return bytes;
}

struct CallPolicies {
  JointProblem::Policies policies = {};
  TraceRelaxation::KindOfGroup kind_of_group = {};
  std::shared_ptr<const NeedPolicies> needs = {};
};

CallPolicies PoliciesOfCall(const TraceProblem& problem,
                            const DecidedChoices& choices,
                            const CountedBytes& witnessed, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  const auto bytes = BytesOfGroups(problem, witnessed, c);
  const auto ms = GroupMs(problem, candidate);
  CallPolicies result;
  JointProblem::Policies& policies = result.policies;
  for (const Release& release : witnessed.released[c]) {
    policies.base_bytes += release.bytes;
  }
  policies.base_bytes -= witnessed.kept_arguments[c];
  if (candidate.is_whole) policies.base_ms = WholeMs(problem, candidate);
  TraceRelaxation::KindOfGroup& kind_of = result.kind_of_group;
  kind_of.assign(bytes.size(), TraceRelaxation::kSaved);
  std::map<std::pair<int64_t, double>, std::vector<graph::GroupId>>
      equal_groups;
  for (const graph::GroupId g : bytes.ids()) {
    const std::optional<bool> decision =
        choices.Recomputes(problem, candidate, g);
    if (decision.value_or(ms[g] == 0)) {
      kind_of[g] = TraceRelaxation::kRecomputed;
      policies.base_ms += ms[g];
      continue;
    }
    policies.base_bytes -= bytes[g];
    if (!decision && bytes[g] > 0) {
      equal_groups[{bytes[g], ms[g]}].push_back(g);
    }
  }
  for (const auto& [kind, groups] : equal_groups) {
    policies.kinds.push_back({.bytes = kind.first,
                              .ms = kind.second,
                              .count = static_cast<int>(groups.size())});
  }
  std::ranges::stable_sort(policies.kinds, {}, [](const GroupKind& kind) {
    return kind.ms / static_cast<double>(kind.bytes);
  });
  for (int k = 0; k < std::ssize(policies.kinds); ++k) {
    const GroupKind& kind = policies.kinds[k];
    for (const graph::GroupId g : equal_groups.at({kind.bytes, kind.ms})) {
      kind_of[g] = k;
    }
  }
  return result;
}

// The choices that decisions leave the policies of a call, with the bytes that
// witnesses count.
NeedChoices ChoicesOfCall(const TraceProblem& problem,
                          const DecidedChoices& choices,
                          const CountedBytes& witnessed, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  const NeedGraph& graph = problem.need_graphs[candidate.needs];
  NeedChoices needs = {
      .base_bytes = -witnessed.kept_arguments[c],
  };
  needs.bytes.assign(graph.results, 0);
  needs.may_keep.assign(graph.results, true);
  const auto result_of =
      [&](graph::StorageId storage) -> std::optional<ResultId> {
    const auto result = std::ranges::lower_bound(
        candidate.needed_results, std::pair(storage, ResultId{0}));
    if (result == candidate.needed_results.end() || result->first != storage) {
      return {};
    }
    return result->second;
  };
  const auto add = [&](const Release& release) {
    if (const auto r = result_of(release.storage)) {
      needs.bytes[*r] += release.bytes;
    }
  };
  std::ranges::for_each(witnessed.released[c], add);
  std::ranges::for_each(witnessed.kept_results[c], add);
  for (const Release& release : witnessed.released[c]) {
    needs.base_bytes += release.bytes;
  }
  for (auto entry = choices.is_not_kept.lower_bound({c, graph::StorageId{0}});
       entry != choices.is_not_kept.end() && entry->first == c; ++entry) {
    if (const auto r = result_of(entry->second)) needs.may_keep[*r] = false;
  }
  for (const graph::GroupId g :
       problem.groups[candidate.module_node].groups.ids()) {
    const std::optional<bool> decision =
        choices.Recomputes(problem, candidate, g);
    needs.may_save.push_back(decision != true);
    needs.may_rerun.push_back(decision != false);
  }
  return needs;
}

// The points of policies that were found as if the base were 0.
JointProblem::Policies WithBase(const NeedPolicies& needs, int64_t base_bytes) {
  JointProblem::Policies policies;
  policies.points = needs.points();
  for (PolicyPoint& point : policies.points) point.bytes += base_bytes;
  if (policies.points.empty()) return policies;
  policies.base_bytes = policies.points.front().bytes;
  policies.base_ms = policies.points.front().ms;
  return policies;
}

bool HasRelaxedPoints(const NeedPolicies& needs) {
  for (size_t p = 0; p < needs.points().size(); ++p) {
    if (!needs.IsExact(p)) return true;
  }
  return false;
}

// The walk with what records ask for.
ModuleProblem WalkWithRecords(const TraceProblem& problem,
                              const CountedBytes& witnessed) {
  ModuleProblem relaxed = problem.forest;
  for (size_t t = 0; t < problem.record_of.size(); ++t) {
    double& bytes = relaxed.nodes[IndexOf(problem.record_of[t])].base_bytes;
    bytes = std::max(bytes, static_cast<double>(witnessed.live[t]));
  }
  return relaxed;
}

}  // namespace

TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions, double most_ms,
                      PolicyMemo& memo) {
  DecidedChoices choices = ChoicesLeftBy(problem, decisions);
  const CountedBytes witnessed = BytesOfWitnesses(problem, witnesses);
  TraceRelaxation result;
  ModuleProblem& relaxed = result.joint.relaxed;
  relaxed = WalkWithRecords(problem, witnessed);
  result.joint.policies_of.assign(relaxed.nodes.size(), -1);
  result.kind_of_group.resize(relaxed.nodes.size());
  result.needs.resize(relaxed.nodes.size());
  PolicyTable policies;
  std::vector<CandidateId> without_policy;
  for (const CandidateId c : problem.candidates.ids()) {
    solver::StopIfDue();
    if (choices.is_no_unit[c]) continue;
    const WalkNodeId node = problem.candidates[c].node;
    const NeedGraphId needs = problem.candidates[c].needs;
    CallPolicies call;
    if (needs == graph::kNone) {
      call = PoliciesOfCall(problem, choices, witnessed, c);
    } else {
      NeedChoices need_choices = ChoicesOfCall(problem, choices, witnessed, c);
      need_choices.most_ms = most_ms;
      call.needs = memo.PoliciesFor(needs, need_choices);
      call.policies = WithBase(*call.needs, need_choices.base_bytes);
      if (call.policies.points.empty()) {
        without_policy.push_back(c);
        continue;
      }
      if (HasRelaxedPoints(*call.needs)) {
        result.inexact.emplace(node, std::move(need_choices));
      }
    }
    relaxed.nodes[IndexOf(node)].curve = HullOf(call.policies);
    result.kind_of_group[node] = std::move(call.kind_of_group);
    result.needs[node] = std::move(call.needs);
    result.joint.policies_of[IndexOf(node)] =
        policies.IndexOf(std::move(call.policies));
  }
  choices.RuleOut(problem, without_policy);
  for (const CandidateId c : problem.candidates.ids()) {
    solver::StopIfDue();
    ModuleProblem::Node& node =
        relaxed.nodes[IndexOf(problem.candidates[c].node)];
    node.unit_base_bytes =
        static_cast<double>(BytesWhileRunning(problem, choices, witnessed, c));
    node.must_be_unit = choices.must_be_unit[c];
  }
  result.joint.policies = policies.Take();
  if (choices.is_impossible) {
    relaxed.fixed_bytes = std::numeric_limits<double>::max();
  }
  if (relaxed.max_units && problem.has_repeated_calls) {
    relaxed.max_units = MostCallsOf(problem, *relaxed.max_units);
  }
  DropUselessLimit(relaxed);
  return result;
}

TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions) {
  PolicyMemo memo(problem);
  return Relax(problem, witnesses, decisions,
               std::numeric_limits<double>::infinity(), memo);
}

bool TraceRelaxation::IsExact(const ChosenUnit& unit) const {
  const auto& policies = needs[NodeOf(unit)];
  return !policies || policies->IsExact(unit.counts[0]);
}

TraceRelaxation Sharpened(const TraceProblem& problem,
                          TraceRelaxation relaxation,
                          const std::vector<ChosenUnit>& units, double most_ms,
                          PolicyMemo& memo) {
  const double price = PriceOfAByte(relaxation.joint.relaxed);
  const double plan_ms = JointCost(relaxation.joint, units);
  for (const ChosenUnit& unit : units) {
    if (relaxation.IsExact(unit)) continue;
    const CandidateId c = problem.candidate_at[NodeOf(unit)];
    const NeedChoices& choices = relaxation.inexact.at(NodeOf(unit));
    std::shared_ptr<const NeedPolicies>& needs = relaxation.needs[NodeOf(unit)];
    const PolicyPoint& point = needs->points()[unit.counts[0]];
    needs = memo.Sharpen(problem.candidates[c].needs, choices,
                         {.least_discarded = point.bytes,
                          .most_ms = most_ms - plan_ms + point.ms,
                          .price = price});
    JointProblem::Policies policies = WithBase(*needs, choices.base_bytes);
    relaxation.joint.relaxed.nodes[unit.node].curve = HullOf(policies);
    relaxation.joint.policies_of[unit.node] =
        static_cast<int>(relaxation.joint.policies.size());
    relaxation.joint.policies.push_back(std::move(policies));
  }
  return relaxation;
}

ChoicesByCandidate ChoicesOfCalls(const TraceProblem& problem,
                                  const Witnesses& witnesses,
                                  const std::vector<Decision>& decisions) {
  const DecidedChoices choices = ChoicesLeftBy(problem, decisions);
  const CountedBytes witnessed = BytesOfWitnesses(problem, witnesses);
  ChoicesByCandidate choices_of(problem.candidates.size());
  for (const CandidateId c : problem.candidates.ids()) {
    if (problem.candidates[c].needs == graph::kNone || choices.is_no_unit[c]) {
      continue;
    }
    choices_of[c] = ChoicesOfCall(problem, choices, witnessed, c);
  }
  return choices_of;
}

GroupUses UsesOfUnit(const TraceRelaxation& relaxation,
                     const ChosenUnit& unit) {
  if (const auto& needs = relaxation.needs[NodeOf(unit)]) {
    return needs->UsesOf(unit.counts[0]);
  }
  const TraceRelaxation::KindOfGroup& kind_of =
      relaxation.kind_of_group[NodeOf(unit)];
  GroupUses uses(kind_of.size(), GroupUse::kSaved);
  std::vector<int> counts = unit.counts;
  for (const graph::GroupId g : std::views::reverse(kind_of.ids())) {
    const int kind = kind_of[g];
    const bool is_recomputed = kind == TraceRelaxation::kRecomputed ||
                               (kind >= 0 && counts[kind]-- > 0);
    if (is_recomputed) uses[g] = GroupUse::kRunsAgain;
  }
  return uses;
}

std::vector<CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units) {
  std::map<graph::ModuleId, GroupUses> uses_of;
  std::map<graph::ModuleId, TreeNodeId> node_of;
  for (const ChosenUnit& unit : units) {
    const CandidateId c = problem.candidate_at[NodeOf(unit)];
    const graph::ModuleId module = CallOf(problem, c).module;
    node_of[module] = problem.candidates[c].module_node;
    const GroupUses uses = UsesOfUnit(relaxation, unit);
    GroupUses& all = uses_of[module];
    if (all.empty()) all.assign(uses.size(), GroupUse::kNone);
    for (const graph::GroupId g : uses.ids()) {
      all[g] = std::max(all[g], uses[g]);
    }
  }
  // Other calls of a module may be units, those around them or inside them.
  const std::map<graph::ModuleId, GroupUses> all = uses_of;
  for (const CandidateCall& candidate : problem.candidates) {
    for (CandidateId a = candidate.parent; a != graph::kNone;
         a = problem.candidates[a].parent) {
      if (!all.contains(CallOf(problem, a).module)) continue;
      uses_of.erase(problem.trace->calls[candidate.call].module);
    }
  }
  std::vector<CheckpointedModule> modules;
  for (const auto& [module, uses] : uses_of) {
    const TreeNodeId node = node_of[module];
    GroupFlags is_saved;
    for (const graph::GroupId g : uses.ids()) {
      const graph::GroupRule rule = problem.groups[node].groups[g].rule;
      is_saved.push_back(
          uses[g] == GroupUse::kSaved ||
          (uses[g] == GroupUse::kNone && rule == graph::GroupRule::kSave));
    }
    modules.push_back(UnitThatSaves(problem, node, is_saved));
  }
  return modules;
}

}  // namespace acplan::problems
