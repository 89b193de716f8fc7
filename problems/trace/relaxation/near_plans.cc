#include "problems/trace/relaxation/near_plans.h"

#include <algorithm>
#include <utility>

#include "problems/plan/trace_memory.h"
#include "problems/trace/problem/unit_policies.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;

namespace {

// Costs that differ by less than this share are equal.
constexpr double kTolerance = 1e-9;
// Simulations that try to make a plan cheaper.
constexpr int kMostPolishing = 500;

std::vector<CheckpointedModule>::iterator UnitIn(
    std::vector<CheckpointedModule>& units, graph::ModuleId module) {
  return std::ranges::find(units, module, &CheckpointedModule::module);
}

// Tries the best plan without a unit, or with one group more that it saves after
// the other. Returns how many plans it tried, at most `limit`.
int PolishUnit(BestPlan& best, graph::ModuleId module, int limit) {
  const TraceProblem& problem = best.problem();
  const double before_ms = best.Ms();
  std::vector<CheckpointedModule> others = best.modules();
  others.erase(UnitIn(others, module));
  int tries = 1;
  best.Try(others);
  if (best.Ms() < before_ms) return tries;
  const auto candidate =
      std::ranges::find_if(problem.candidates, [&](const CandidateCall& c) {
        return problem.trace->calls[c.call].module == module;
      });
  const TreeNodeId node = candidate->module_node;
  const graph::IndexedVector<graph::GroupId, graph::OperatorGroup>& groups =
      problem.groups[node].groups;
  GroupUses uses;  // of the best plan
  double ms_of_uses = 0;
  for (const graph::GroupId g : groups.ids()) {
    std::vector<CheckpointedModule> units = best.modules();
    CheckpointedModule& unit = *UnitIn(units, module);
    if (unit.decisions.empty()) break;
    if (uses.empty() || best.Ms() < ms_of_uses) {
      uses = UsesOfGroups(problem, node, unit);
      ms_of_uses = best.Ms();
    }
    const bool is_open = groups[g].rule == graph::GroupRule::kFree &&
                         groups[g].runtime > 0 &&
                         uses[g] == GroupUse::kRunsAgain;
    if (!is_open || tries >= limit) continue;
    GroupFlags is_saved;
    for (const GroupUse use : uses) is_saved.push_back(use == GroupUse::kSaved);
    is_saved[g] = true;
    unit = UnitThatSaves(problem, node, is_saved);
    ++tries;
    best.Try(units);
  }
  return tries;
}

}  // namespace

std::optional<Simulation> BestPlan::Try(
    const std::vector<CheckpointedModule>& modules) {
  std::optional<Simulation> use = SimulatedUse(problem_, modules);
  if (use && use->peak_bytes <= budget_bytes_ && use->recompute_ms < Ms() &&
      KeepsMaxUnits(problem_, modules)) {
    is_found_ = true;
    modules_ = modules;
    use_ = *use;
  }
  return use;
}

bool BestPlan::IsAsGoodAs(double bound_ms) const {
  return bound_ms >= Ms() * (1 - kTolerance);
}

void Polish(BestPlan& best, const std::function<bool()>& is_stopped) {
  if (!best.is_found()) return;
  int tries_left = kMostPolishing;
  for (bool is_better = true; is_better && tries_left > 0;) {
    is_better = false;
    const std::vector<CheckpointedModule> units = best.modules();
    for (size_t u = 0; u < units.size() && tries_left > 0; ++u) {
      if (best.IsAsGoodAs(0) || is_stopped()) return;
      const double before_ms = best.Ms();
      tries_left -= PolishUnit(best, units[u].module, tries_left);
      is_better |= best.Ms() < before_ms;
    }
  }
}

TraceRelaxation WithRaisedRecords(const TraceProblem& problem,
                                  const RelaxedPlan& plan,
                                  int64_t budget_bytes) {
  TraceRelaxation raised = plan.relaxation;
  std::vector<ModuleProblem::Node>& nodes = raised.joint.relaxed.nodes;
  const auto is_around = [&](const ChosenUnit& unit, WalkNodeId node) {
    return NodeOf(unit) <= node &&
           node < EndOfSubtree(raised.joint.relaxed, NodeOf(unit));
  };
  const auto released_before = [&](WalkNodeId node) {
    double bytes = 0;
    for (const ChosenUnit& unit : plan.units) {
      if (!is_around(unit, node) &&
          nodes[unit.node].time < nodes[IndexOf(node)].time) {
        bytes += unit.net_bytes;
      }
    }
    return bytes;
  };
  const Simulation& use = *plan.use;
  const auto times = TimesOf(use);
  for (const graph::StepId k : times.ids()) {
    if (use.live_bytes[k] <= budget_bytes) continue;
    const Simulation::Step& step = use.steps[k];
    const WalkNodeId record =
        step.redone == graph::kNone
            ? problem.record_of[times[k]]
            : problem.candidates[problem.candidate_of[step.redone]].node;
    const auto unit = std::ranges::find_if(
        plan.units, [&](const ChosenUnit& u) { return is_around(u, record); });
    const auto live = static_cast<double>(use.live_bytes[k]);
    if (unit == plan.units.end()) {
      double& bytes = nodes[IndexOf(record)].base_bytes;
      bytes = std::max(bytes, live + released_before(record));
    } else {
      std::optional<double>& bytes = nodes[unit->node].unit_base_bytes;
      bytes = std::max(*bytes, live + released_before(NodeOf(*unit)));
    }
  }
  return raised;
}

}  // namespace acplan::problems
