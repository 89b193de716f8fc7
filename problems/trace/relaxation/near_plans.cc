#include "problems/trace/relaxation/near_plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "problems/plan/trace_memory.h"
#include "problems/trace/problem/unit_policies.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;

namespace {

// Costs that differ by less than this share are equal.
constexpr double kTolerance = 1e-9;
// Simulations that try to make a plan cheaper.
constexpr int kMostPolishing = 500;
// The most operators that simulations of plain plans run, summed: a fraction of a second, as
// plain plans are tried when the time of a search is up. At least one is tried.
constexpr int64_t kMostPlainOperators = 200'000;
// The most plans near the best one that are kept.
constexpr size_t kMostNear = 64;

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

// The depths of candidates: the number of candidates around them.
using Depths = graph::IndexedVector<CandidateId, int>;

// Returns units that save only the groups that a rule makes them save: the candidates at a
// depth, and those further out that have no candidate inside. A module that also has
// another candidate is not a unit.
std::vector<CheckpointedModule> UnitsAtDepth(const TraceProblem& problem,
                                             const Depths& depth_of,
                                             int depth) {
  graph::IndexedVector<TreeNodeId, graph::Flag> is_unit(problem.groups.size(),
                                                        false);
  graph::IndexedVector<TreeNodeId, graph::Flag> is_other = is_unit;
  for (const CandidateId c : problem.candidates.ids()) {
    const CandidateCall& candidate = problem.candidates[c];
    const bool is_at_depth =
        depth_of[c] == depth || (depth_of[c] < depth && candidate.is_innermost);
    (is_at_depth ? is_unit : is_other)[candidate.module_node] = true;
  }
  std::vector<CheckpointedModule> units;
  for (const TreeNodeId node : is_unit.ids()) {
    if (!is_unit[node] || is_other[node]) continue;
    GroupFlags is_saved;
    for (const graph::OperatorGroup& group : problem.groups[node].groups) {
      is_saved.push_back(group.rule == graph::GroupRule::kSave);
    }
    units.push_back(UnitThatSaves(problem, node, is_saved));
  }
  return units;
}

// Returns the number of plain plans that may be tried.
int64_t MostPlainPlans(const TraceProblem& problem) {
  const int64_t operators = std::ssize(problem.trace->operators);
  return std::max<int64_t>(
      1, kMostPlainOperators / std::max<int64_t>(1, operators));
}

// The units of a relaxation's plan, in the order in which its walk leaves them.
class UnitsInWalk {
 public:
  UnitsInWalk(const ModuleProblem& forest, const std::vector<ChosenUnit>& units)
      : forest_(forest) {
    for (const ChosenUnit& unit : units) {
      nodes_of_units_.push_back(NodeOf(unit));
      released_.emplace_back(NodeAt(forest, NodeOf(unit)).time, unit.net_bytes);
    }
    std::ranges::sort(nodes_of_units_);
    std::ranges::sort(released_);
    double bytes = 0;
    for (auto& [time, sum] : released_) sum = bytes += sum;
  }

  // Returns the node of the unit that has this node in its subtree, if any.
  std::optional<WalkNodeId> FindAround(WalkNodeId node) const {
    const auto next = std::ranges::upper_bound(nodes_of_units_, node);
    if (next == nodes_of_units_.begin()) return std::nullopt;
    const WalkNodeId unit = *(next - 1);
    return node < EndOfSubtree(forest_, unit) ? std::optional(unit)
                                              : std::nullopt;
  }

  // Returns the bytes released by the units that the walk leaves before a node. The walk
  // leaves a unit around the node after the node.
  double ReleasedBefore(WalkNodeId node) const {
    const auto next =
        std::ranges::lower_bound(released_, NodeAt(forest_, node).time, {},
                                 &std::pair<int, double>::first);
    return next == released_.begin() ? 0 : (next - 1)->second;
  }

 private:
  const ModuleProblem& forest_;
  std::vector<WalkNodeId> nodes_of_units_;
  std::vector<std::pair<int, double>>
      released_;  // times, and the sums until then
};

}  // namespace

std::optional<Simulation> BestPlan::Try(
    const std::vector<CheckpointedModule>& modules) {
  std::optional<Simulation> use = SimulatedUse(problem_, modules);
  if (!use) return use;
  const bool is_best =
      use->peak_bytes <= budget_bytes_ && use->recompute_ms < Ms();
  const bool is_near = use->peak_bytes <= near_bytes_;
  if (!(is_best || is_near) || !KeepsMaxUnits(problem_, modules)) return use;
  if (is_best) {
    is_found_ = true;
    modules_ = modules;
    use_ = *use;
  }
  if (is_near) {
    near_.push_back({.modules = modules,
                     .ms = use->recompute_ms,
                     .peak_bytes = use->peak_bytes});
    if (near_.size() >= 2 * kMostNear) near_ = NearPlans();
  }
  return use;
}

std::vector<NearPlan> BestPlan::NearPlans() const {
  const auto key = [](const NearPlan& plan) {
    return std::pair(plan.ms, plan.peak_bytes);
  };
  std::vector<NearPlan> near = near_;
  std::ranges::stable_sort(near, {}, key);
  // Plans that need as much of both are the same one, most often.
  const auto repeated = std::ranges::unique(near, {}, key);
  near.erase(repeated.begin(), repeated.end());
  if (near.size() > kMostNear) near.resize(kMostNear);
  return near;
}

bool BestPlan::IsAsGoodAs(double bound_ms) const {
  return bound_ms >= Ms() * (1 - kTolerance);
}

void TryPlainPlans(
    const TraceProblem& problem,
    const std::function<bool(const std::vector<CheckpointedModule>&)>&
        is_enough) {
  const solver::StopsLater later;
  Depths depth_of;
  for (const CandidateCall& candidate : problem.candidates) {
    depth_of.push_back(
        candidate.parent == graph::kNone ? 0 : depth_of[candidate.parent] + 1);
  }
  if (depth_of.empty()) return;
  const int deepest = *std::ranges::max_element(depth_of);
  // From the middle, where units are neither few nor small.
  std::vector<int> depths;
  for (int depth = 0; depth <= deepest; ++depth) depths.push_back(depth);
  std::ranges::stable_sort(
      depths, {}, [&](int depth) { return std::abs(2 * depth - deepest); });
  const int64_t most = MostPlainPlans(problem);
  if (std::ssize(depths) > most) depths.resize(most);
  for (const int depth : depths) {
    if (is_enough(UnitsAtDepth(problem, depth_of, depth))) return;
  }
}

void FindPlainPlan(BestPlan& best) {
  if (best.HasRival()) return;
  const solver::StopsLater later;
  std::vector<CheckpointedModule> units;
  TryPlainPlans(best.problem(),
                [&](const std::vector<CheckpointedModule>& plain) {
                  units = plain;
                  best.Try(units);
                  return best.is_found();
                });
  if (!best.is_found()) return;
  // The first of these units may be enough.
  auto few = static_cast<ptrdiff_t>(0);
  auto enough = std::ssize(units);
  for (int64_t tries_left = MostPlainPlans(best.problem());
       enough - few > 1 && tries_left > 0; --tries_left) {
    const ptrdiff_t count = few + (enough - few) / 2;
    const std::optional<Simulation> use =
        best.Try({units.begin(), units.begin() + count});
    const bool fits = use && use->peak_bytes <= best.budget_bytes();
    (fits ? enough : few) = count;
  }
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
  const UnitsInWalk units(raised.joint.relaxed, plan.units);
  const Simulation& use = *plan.use;
  const auto times = TimesOf(use);
  for (const graph::StepId k : times.ids()) {
    if (use.live_bytes[k] <= budget_bytes) continue;
    const Simulation::Step& step = use.steps[k];
    const WalkNodeId record =
        step.redone == graph::kNone
            ? problem.record_of[times[k]]
            : problem.candidates[problem.candidate_of[step.redone]].node;
    const std::optional<WalkNodeId> unit = units.FindAround(record);
    const auto live = static_cast<double>(use.live_bytes[k]);
    if (!unit) {
      double& bytes = nodes[IndexOf(record)].base_bytes;
      bytes = std::max(bytes, live + units.ReleasedBefore(record));
    } else {
      std::optional<double>& bytes = nodes[IndexOf(*unit)].unit_base_bytes;
      bytes = std::max(*bytes, live + units.ReleasedBefore(*unit));
    }
  }
  return raised;
}

}  // namespace acplan::problems
