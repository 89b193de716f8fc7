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
  std::map<int, int> calls_of;  // a module
  for (const CandidateCall& candidate : problem.candidates) {
    ++calls_of[candidate.module_node];
  }
  std::vector<int> calls;
  for (const auto& [module, count] : calls_of) calls.push_back(count);
  std::ranges::sort(calls, std::greater<>());
  const size_t counted = std::min(calls.size(), static_cast<size_t>(modules));
  return std::accumulate(calls.begin(),
                         calls.begin() + static_cast<ptrdiff_t>(counted), 0);
}

// Returns for each group the bytes that saving it keeps.
std::vector<int64_t> BytesOfGroups(const TraceProblem& problem,
                                   const CountedBytes& counted, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  std::vector<int64_t> bytes(
      problem.groups[candidate.module_node].groups.size(), 0);
  const auto add = [&](const Release& release) {
    const std::optional<int> group = GroupThatKeeps(candidate, release.storage);
    if (group) bytes[*group] += release.bytes;
  };
  std::ranges::for_each(counted.released[c], add);
  std::ranges::for_each(counted.kept_results[c], add);
  return bytes;
}

struct CallPolicies {
  JointProblem::Policies policies = {};
  std::vector<int> kind_of_group = {};
  std::shared_ptr<const NeedPolicies> needs = {};
};

CallPolicies PoliciesOfCall(const TraceProblem& problem,
                            const DecidedChoices& choices,
                            const CountedBytes& counted, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  const std::vector<int64_t> bytes = BytesOfGroups(problem, counted, c);
  const std::vector<double> ms = GroupMs(problem, candidate);
  CallPolicies result;
  JointProblem::Policies& policies = result.policies;
  for (const Release& release : counted.released[c]) {
    policies.base_bytes += release.bytes;
  }
  policies.base_bytes -= counted.kept_arguments[c];
  if (candidate.is_whole) policies.base_ms = WholeMs(problem, candidate);
  std::vector<int>& kind_of = result.kind_of_group;
  kind_of.assign(bytes.size(), TraceRelaxation::kSaved);
  std::map<std::pair<int64_t, double>, std::vector<int>> alike;
  for (int g = 0; g < std::ssize(bytes); ++g) {
    const std::optional<bool> known = choices.Recomputes(problem, candidate, g);
    if (known.value_or(ms[g] == 0)) {
      kind_of[g] = TraceRelaxation::kRecomputed;
      policies.base_ms += ms[g];
      continue;
    }
    policies.base_bytes -= bytes[g];
    if (!known && bytes[g] > 0) alike[{bytes[g], ms[g]}].push_back(g);
  }
  for (const auto& [kind, groups] : alike) {
    policies.kinds.push_back({.bytes = kind.first,
                              .ms = kind.second,
                              .count = static_cast<int>(groups.size())});
  }
  std::ranges::stable_sort(policies.kinds, {}, [](const GroupKind& kind) {
    return kind.ms / static_cast<double>(kind.bytes);
  });
  for (int k = 0; k < std::ssize(policies.kinds); ++k) {
    const GroupKind& kind = policies.kinds[k];
    for (const int g : alike.at({kind.bytes, kind.ms})) kind_of[g] = k;
  }
  return result;
}

// The choices that decisions leave the policies of a call, with the bytes that
// witnesses count.
NeedChoices ChoicesOfCall(const TraceProblem& problem,
                          const DecidedChoices& choices,
                          const CountedBytes& counted, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  const NeedGraph& graph = problem.need_graphs[candidate.needs];
  NeedChoices needs = {
      .base_bytes = -counted.kept_arguments[c],
      .bytes = std::vector<int64_t>(graph.results, 0),
      .may_keep = std::vector<char>(graph.results, 1),
  };
  const auto number_of = [&](int32_t storage) -> std::optional<int> {
    const auto found =
        std::ranges::lower_bound(candidate.needed, std::pair(storage, -1));
    if (found == candidate.needed.end() || found->first != storage) return {};
    return found->second;
  };
  const auto add = [&](const Release& release) {
    if (const auto r = number_of(release.storage)) {
      needs.bytes[*r] += release.bytes;
    }
  };
  std::ranges::for_each(counted.released[c], add);
  std::ranges::for_each(counted.kept_results[c], add);
  for (const Release& release : counted.released[c]) {
    needs.base_bytes += release.bytes;
  }
  for (auto kept = choices.is_not_kept.lower_bound({c, 0});
       kept != choices.is_not_kept.end() && kept->first == c; ++kept) {
    if (const auto r = number_of(kept->second)) needs.may_keep[*r] = 0;
  }
  const auto groups =
      static_cast<int>(problem.groups[candidate.module_node].groups.size());
  for (int g = 0; g < groups; ++g) {
    const std::optional<bool> known = choices.Recomputes(problem, candidate, g);
    needs.may_save.push_back(known != true ? 1 : 0);
    needs.may_rerun.push_back(known != false ? 1 : 0);
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
                              const CountedBytes& counted) {
  ModuleProblem relaxed = problem.forest;
  for (size_t t = 0; t < problem.record_of.size(); ++t) {
    double& bytes = relaxed.nodes[problem.record_of[t]].base_bytes;
    bytes = std::max(bytes, static_cast<double>(counted.live[t]));
  }
  return relaxed;
}

}  // namespace

TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions, double most_ms,
                      PolicyMemo& memo) {
  DecidedChoices choices = ChoicesLeftBy(problem, decisions);
  const CountedBytes counted = BytesOfWitnesses(problem, witnesses);
  TraceRelaxation result;
  ModuleProblem& relaxed = result.joint.relaxed;
  relaxed = WalkWithRecords(problem, counted);
  result.joint.policies_of.assign(relaxed.nodes.size(), -1);
  result.kind_of_group.resize(relaxed.nodes.size());
  result.needs.resize(relaxed.nodes.size());
  PolicyTable policies;
  std::vector<int> without_policy;
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    solver::StopIfDue();
    if (choices.is_no_unit[c]) continue;
    const int node = problem.candidates[c].node;
    const int needs = problem.candidates[c].needs;
    CallPolicies call;
    if (needs < 0) {
      call = PoliciesOfCall(problem, choices, counted, c);
    } else {
      NeedChoices left = ChoicesOfCall(problem, choices, counted, c);
      left.most_ms = most_ms;
      call.needs = memo.Of(needs, left);
      call.policies = WithBase(*call.needs, left.base_bytes);
      if (call.policies.points.empty()) {
        without_policy.push_back(c);
        continue;
      }
      if (HasRelaxedPoints(*call.needs)) {
        result.inexact.emplace(node, std::move(left));
      }
    }
    relaxed.nodes[node].curve = HullOf(call.policies);
    result.kind_of_group[node] = std::move(call.kind_of_group);
    result.needs[node] = std::move(call.needs);
    result.joint.policies_of[node] = policies.IndexOf(std::move(call.policies));
  }
  choices.RuleOut(problem, without_policy);
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    solver::StopIfDue();
    ModuleProblem::Node& node = relaxed.nodes[problem.candidates[c].node];
    node.unit_base_bytes =
        static_cast<double>(BytesWhileRunning(problem, choices, counted, c));
    node.must_be_unit = choices.must_be_unit[c] != 0;
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
  return !needs[unit.node] || needs[unit.node]->IsExact(unit.counts[0]);
}

TraceRelaxation Sharpened(const TraceProblem& problem,
                          TraceRelaxation relaxation,
                          const std::vector<ChosenUnit>& units, double most_ms,
                          PolicyMemo& memo) {
  const double price = PriceOfAByte(relaxation.joint.relaxed);
  const double plan_ms = JointCost(relaxation.joint, units);
  for (const ChosenUnit& unit : units) {
    if (relaxation.IsExact(unit)) continue;
    const int c = problem.candidate_at[unit.node];
    const NeedChoices& choices = relaxation.inexact.at(unit.node);
    std::shared_ptr<const NeedPolicies>& needs = relaxation.needs[unit.node];
    const PolicyPoint& point = needs->points()[unit.counts[0]];
    needs = memo.Sharpened(problem.candidates[c].needs, choices,
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

std::vector<std::optional<NeedChoices>> ChoicesOfCalls(
    const TraceProblem& problem, const Witnesses& witnesses,
    const std::vector<Decision>& decisions) {
  const DecidedChoices choices = ChoicesLeftBy(problem, decisions);
  const CountedBytes counted = BytesOfWitnesses(problem, witnesses);
  std::vector<std::optional<NeedChoices>> choices_of(problem.candidates.size());
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    if (problem.candidates[c].needs < 0 || choices.is_no_unit[c]) continue;
    choices_of[c] = ChoicesOfCall(problem, choices, counted, c);
  }
  return choices_of;
}

std::vector<GroupUse> GroupUses(const TraceRelaxation& relaxation,
                                const ChosenUnit& unit) {
  if (const auto& needs = relaxation.needs[unit.node]) {
    return needs->UsesOf(unit.counts[0]);
  }
  const std::vector<int>& kind_of = relaxation.kind_of_group[unit.node];
  std::vector<GroupUse> uses(kind_of.size(), GroupUse::kSaved);
  std::vector<int> left = unit.counts;
  for (size_t g = kind_of.size(); g-- > 0;) {
    const int kind = kind_of[g];
    const bool is_recomputed =
        kind == TraceRelaxation::kRecomputed || (kind >= 0 && left[kind]-- > 0);
    if (is_recomputed) uses[g] = GroupUse::kRunsAgain;
  }
  return uses;
}

std::vector<CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units) {
  std::map<int32_t, std::vector<GroupUse>> uses_of;  // a module
  std::map<int32_t, int> node_of;
  for (const ChosenUnit& unit : units) {
    const int c = problem.candidate_at[unit.node];
    const int32_t module = CallOf(problem, c).module;
    node_of[module] = problem.candidates[c].module_node;
    std::vector<GroupUse> uses = GroupUses(relaxation, unit);
    std::vector<GroupUse>& all = uses_of[module];
    all.resize(uses.size(), GroupUse::kNone);
    for (size_t g = 0; g < uses.size(); ++g) all[g] = std::max(all[g], uses[g]);
  }
  // Other calls of a module may be units, those around them or inside them.
  const std::map<int32_t, std::vector<GroupUse>> all = uses_of;
  for (const CandidateCall& candidate : problem.candidates) {
    for (int a = candidate.parent; a >= 0; a = problem.candidates[a].parent) {
      if (!all.contains(CallOf(problem, a).module)) continue;
      uses_of.erase(problem.trace->calls[candidate.call].module);
    }
  }
  std::vector<CheckpointedModule> modules;
  for (const auto& [module, uses] : uses_of) {
    const int node = node_of[module];
    std::vector<char> saved;
    for (size_t g = 0; g < uses.size(); ++g) {
      const graph::GroupRule rule = problem.groups[node].groups[g].rule;
      const bool is_saved =
          uses[g] == GroupUse::kSaved ||
          (uses[g] == GroupUse::kNone && rule == graph::GroupRule::kSave);
      saved.push_back(is_saved ? 1 : 0);
    }
    modules.push_back(UnitThatSaves(problem, node, saved));
  }
  return modules;
}

}  // namespace acplan::problems
