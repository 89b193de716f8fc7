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
// Rounding keeps the bound: witnesses with shares count down, releases up.
//
// Example. A block runs mm, gelu and mm; autograd saves its input, the result x of
// the first and the result y of the second operator, 8 MiB each. Let the witnesses
// of x and y be these saved tensors, and that of the input the block's frame. Then
// b(t) counts x and y from when they are made until backward lets go of them. As a
// unit that saves nothing the block releases both and keeps its input: D = 16 - 8
// MiB. Each of the groups {mm} and {gelu} has m = 8 MiB, so a = 8 - 16 = -8 MiB.
#include "problems/trace/relaxation.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "problems/model/unit_forest.h"
#include "problems/trace/counted_bytes.h"
#include "problems/trace/holders.h"
#include "problems/trace/running_bytes.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::OperatorGroups;

namespace {

using Release = CountedBytes::Release;

// A unit that discards nothing is none in the relaxation. Then records inside
// it ask for no more than it does.
void RequireUnit(ModuleProblem& relaxed, int node) {
  std::vector<ModuleProblem::Node>& nodes = relaxed.nodes;
  if (!nodes[node].curve.empty()) {
    nodes[node].must_be_unit = true;
    return;
  }
  for (int k = node; k < node + nodes[node].subtree_size; ++k) {
    nodes[k].base_bytes =
        std::min(nodes[k].base_bytes, *nodes[node].unit_base_bytes);
  }
}

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
  JointProblem::Policies policies;
  std::vector<int> kind_of_group;
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
                      const std::vector<Decision>& decisions) {
  const DecidedChoices choices = ChoicesLeftBy(problem, decisions);
  const CountedBytes counted = BytesOfWitnesses(problem, witnesses);
  TraceRelaxation result;
  ModuleProblem& relaxed = result.joint.relaxed;
  relaxed = WalkWithRecords(problem, counted);
  result.joint.policies_of.assign(relaxed.nodes.size(), -1);
  result.kind_of_group.resize(relaxed.nodes.size());
  PolicyTable policies;
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    const int node = problem.candidates[c].node;
    relaxed.nodes[node].unit_base_bytes =
        static_cast<double>(BytesWhileRunning(problem, choices, counted, c));
    if (!choices.is_no_unit[c]) {
      CallPolicies call = PoliciesOfCall(problem, choices, counted, c);
      relaxed.nodes[node].curve = HullOf(call.policies);
      result.kind_of_group[node] = std::move(call.kind_of_group);
      result.joint.policies_of[node] =
          policies.IndexOf(std::move(call.policies));
    }
    if (choices.must_be_unit[c]) RequireUnit(relaxed, node);
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

std::vector<char> RecomputedGroups(const TraceRelaxation& relaxation,
                                   const ChosenUnit& unit) {
  const std::vector<int>& kind_of = relaxation.kind_of_group[unit.node];
  std::vector<char> recomputed(kind_of.size(), 0);
  std::vector<int> left = unit.counts;
  for (size_t g = kind_of.size(); g-- > 0;) {
    const int kind = kind_of[g];
    const bool is_recomputed =
        kind == TraceRelaxation::kRecomputed || (kind >= 0 && left[kind]-- > 0);
    recomputed[g] = is_recomputed ? 1 : 0;
  }
  return recomputed;
}

std::vector<CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units) {
  std::map<int32_t, std::vector<OperatorDecision>> decisions_of;  // a module
  for (const ChosenUnit& unit : units) {
    const int c = problem.candidate_at[unit.node];
    const OperatorGroups& groups =
        problem.groups[problem.candidates[c].module_node];
    std::vector<OperatorDecision>& decisions =
        decisions_of
            .try_emplace(CallOf(problem, c).module, groups.group_of.size(),
                         OperatorDecision::kSave)
            .first->second;
    const std::vector<char> recomputed = RecomputedGroups(relaxation, unit);
    for (size_t g = 0; g < recomputed.size(); ++g) {
      if (!recomputed[g]) continue;
      for (const int op : groups.groups[g].ops) {
        decisions[op] = OperatorDecision::kRecompute;
      }
    }
  }
  // Other calls of a module may be units, those around them or inside them.
  const std::map<int32_t, std::vector<OperatorDecision>> all = decisions_of;
  for (const CandidateCall& candidate : problem.candidates) {
    for (int a = candidate.parent; a >= 0; a = problem.candidates[a].parent) {
      if (!all.contains(CallOf(problem, a).module)) continue;
      decisions_of.erase(problem.trace->calls[candidate.call].module);
    }
  }
  std::vector<CheckpointedModule> modules;
  for (auto& [module, decisions] : decisions_of) {
    modules.push_back({.module = module, .decisions = std::move(decisions)});
  }
  return modules;
}

}  // namespace acplan::problems
