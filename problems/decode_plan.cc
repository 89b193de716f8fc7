#include "problems/decode_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graph/profile/sac_statistics.h"
#include "problems/engines/operator_checkpointing.h"

namespace acplan::problems {

using graph::ModuleTree;
using graph::Profile;
using solver::SearchStatus;

namespace {

constexpr int64_t kMostDecodingLabels = 1 << 20;

// Returns the policy that an engine chose for the unit. Within a kind of equal
// groups, the later ones are recomputed.
OperatorPolicy EnginesPolicy(const graph::SacStatistics& sac,
                             const graph::OperatorGroups& groups,
                             const JointProblem::Policies& policies,
                             const ChosenUnit& unit) {
  std::vector<int> remaining_counts = unit.counts;
  std::vector<char> save(groups.group_of.size(), 1);
  for (const graph::OperatorGroup& group : std::views::reverse(groups.groups)) {
    bool recomputed = group.rule == graph::GroupRule::kRecompute;
    if (group.rule == graph::GroupRule::kFree && group.memory > 0) {
      recomputed = group.runtime == 0;
      for (size_t k = 0; k < remaining_counts.size() && !recomputed; ++k) {
        const GroupKind& kind = policies.kinds[k];
        recomputed = kind.bytes == group.memory && kind.ms == group.runtime &&
                     remaining_counts[k]-- > 0;
      }
    }
    for (const int op : group.ops) save[op] = recomputed ? 0 : 1;
  }
  return PolicyOf(sac, std::move(save));
}

PlannedModule UnitWithPolicy(const graph::Module& module,
                             const OperatorPolicy& policy) {
  const std::vector<int64_t>& memory = module.sac->memory;
  const int64_t total =
      std::accumulate(memory.begin(), memory.end(), int64_t{0});
  PlannedModule planned_unit;
  planned_unit.fqn = module.fqn;
  planned_unit.memory_budget =
      total > 0
          ? static_cast<double>(policy.saved_bytes) / static_cast<double>(total)
          : 1;
  planned_unit.discard_ratio = 1 - planned_unit.memory_budget;
  // Negative if temporaries are saved.
  planned_unit.discarded_bytes =
      std::max<int64_t>(kNotStated, std::min(module.act_fw_per_module, total) -
                                        policy.saved_bytes);
  planned_unit.recompute_ms = policy.recompute_ms;
  for (size_t k = 0; k < policy.save.size(); ++k) {
    planned_unit.ops.push_back(
        {.index = static_cast<int>(k),
         .name = module.sac->func_names[k],
         .decision = graph::SaveOrRecompute(policy.save[k] != 0)});
  }
  return planned_unit;
}

std::vector<char> SavedOps(const graph::CheckpointedModule& unit) {
  std::vector<char> saved;
  saved.reserve(unit.decisions.size());
  for (const graph::OperatorDecision decision : unit.decisions) {
    saved.push_back(decision == graph::OperatorDecision::kSave ? 1 : 0);
  }
  return saved;
}

// Skipped and offloaded operators are discarded like recomputed ones, but take
// no time.
PlannedModule PlannedOnTrace(const graph::Module& module,
                             const graph::CheckpointedModule& unit) {
  PlannedModule planned_unit =
      UnitWithPolicy(module, PolicyOf(*module.sac, SavedOps(unit)));
  const bool is_of_two =
      std::ranges::all_of(unit.decisions, [](graph::OperatorDecision decision) {
        return decision == graph::OperatorDecision::kSave ||
               decision == graph::OperatorDecision::kRecompute;
      });
  if (!is_of_two) planned_unit.recompute_ms = 0;
  for (PlannedOp& op : planned_unit.ops) {
    op.decision = unit.decisions[op.index];
    if (!is_of_two && op.RunsAgain()) {
      planned_unit.recompute_ms += module.sac->runtimes[op.index];
    }
    const auto results = unit.kept_results.find(op.index);
    if (results != unit.kept_results.end()) op.results = results->second;
  }
  return planned_unit;
}

// Returns a unit without a policy.
PlannedModule WholeUnit(const TraceProblem& problem, const std::string& fqn,
                        graph::ModuleId module) {
  PlannedModule unit;
  unit.fqn = fqn;
  unit.discard_ratio = 1;
  unit.memory_budget = 0;
  unit.recompute_ms = 0;
  for (const CandidateCall& candidate : problem.candidates) {
    if (problem.trace->calls[candidate.call].module == module) {
      unit.recompute_ms += WholeMs(problem, candidate);
    }
  }
  return unit;
}

// Notes the operators of a unit that run once.
void NoteOnce(PlannedModule& unit, const graph::Trace& trace,
              graph::ModuleId module) {
  const auto call =
      std::ranges::find_if(trace.calls, [&](const graph::TraceCall& c) {
        return c.module == module && !c.no_grad;
      });
  if (call == trace.calls.end()) return;
  for (PlannedOp& op : unit.ops) {
    op.once = trace.operators[call->AtPlace(op.index)].once;
  }
}

}  // namespace

PlannedModule DecodeModule(const Profile& profile, const ModuleTree& tree,
                           const BuiltModuleProblem& built_problem,
                           const ChosenUnit& unit) {
  const UnitScale& scale = built_problem.scales[unit.node];
  PlannedModule module;
  module.fqn = profile.modules[tree.node(unit.node).module].fqn;
  module.memory_budget =
      std::clamp(scale.MemoryBudget(unit.net_bytes), 0.0, 1.0);
  module.discard_ratio = 1 - module.memory_budget;
  module.discarded_bytes = std::llround(unit.net_bytes + scale.held_bytes);
  module.recompute_ms =
      CurveCost(built_problem.problem.nodes[unit.node].curve, unit.net_bytes);
  return module;
}

PlannedModule DecodeUnit(const Profile& profile, const ModuleTree& tree,
                         const BuiltJointProblem& built_problem,
                         const ChosenUnit& unit) {
  const graph::Module& module = profile.modules[tree.node(unit.node).module];
  const graph::OperatorGroups& groups = built_problem.groups[unit.node];
  const int64_t discarded =
      std::llround(unit.net_bytes +
                   built_problem.problem.relaxed.nodes[unit.node].held_bytes);
  const int64_t total = groups.TotalBytes();
  const int64_t kept_bytes = std::min(module.act_fw_per_module, total);
  const JointProblem::Policies& policies =
      built_problem.problem
          .policies[built_problem.problem.policies_of[unit.node]];
  OperatorPolicy policy = EnginesPolicy(*module.sac, groups, policies, unit);
  OperatorSolution least = SolveOperators(groups, kept_bytes - discarded,
                                          {.node_limit = kMostDecodingLabels});
  if (least.status == SearchStatus::kOptimal ||
      least.policy.recompute_ms < policy.recompute_ms) {
    policy = std::move(least.policy);
  }
  return UnitWithPolicy(module, policy);
}

std::vector<PlannedModule> DecodeUnits(
    const Profile& profile, const ModuleTree& tree, const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& units) {
  std::unordered_map<std::string_view, const graph::CheckpointedModule*>
      unit_of;
  for (const graph::CheckpointedModule& unit : units) {
    unit_of.try_emplace(problem.trace->modules[unit.module].fqn, &unit);
  }
  std::vector<PlannedModule> modules;
  for (int i = 0; i < tree.size(); ++i) {
    const graph::Module& module = profile.modules[tree.node(i).module];
    const auto entry = unit_of.find(module.fqn);
    if (entry == unit_of.end()) continue;
    const graph::CheckpointedModule& unit = *entry->second;
    modules.push_back(unit.decisions.empty()
                          ? WholeUnit(problem, module.fqn, unit.module)
                          : PlannedOnTrace(module, unit));
    NoteOnce(modules.back(), *problem.trace, unit.module);
    modules.back().stops_early = unit.stops_early;
    modules.back().offloaded_arguments = unit.offloaded_arguments;
  }
  return modules;
}

}  // namespace acplan::problems
