#include "problems/offload/offload_search.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "graph/trace/link_time.h"
#include "problems/offload/cover_units.h"
#include "problems/offload/least_offload.h"
#include "problems/trace/problem/unit_policies.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::Simulation;

namespace {

// Costs that differ by less are equal.
constexpr double kSameMs = 1e-7;
// A cost below this is nothing: it cannot be lowered.
constexpr double kNothingMs = 1e-9;

double StallOf(const TraceProblem& problem, const Simulation& use,
               const LinkLimits& limits) {
  return graph::TimeOnLink(*problem.trace, use, limits.rates).stall_ms;
}

// Returns the groups that a unit saves.
GroupFlags SavedOf(const GroupUses& uses) {
  GroupFlags is_saved;
  for (const GroupUse use : uses) is_saved.push_back(use == GroupUse::kSaved);
  return is_saved;
}

}  // namespace

OffloadSearch::OffloadSearch(OffloadSearchQuestion question)
    : question_(std::move(question)),
      rounding_bytes_(RoundingBytes(*question_.problem.trace)) {}

bool OffloadSearch::IsDone() const {
  return question_.is_stopped() || CostMs() <= kNothingMs;
}

double OffloadSearch::LeastStallMs(const Simulation& saved_run) const {
  const graph::IndexedVector<graph::StepId, double> begins_ms =
      graph::BeginsOfSteps(*question_.problem.trace, saved_run);
  const int64_t free_bytes = question_.budget_bytes + rounding_bytes_;
  double least_ms = 0;
  for (const graph::StepId step : saved_run.live_bytes.ids()) {
    const auto away =
        static_cast<double>(saved_run.live_bytes[step] - free_bytes);
    least_ms = std::max(least_ms, away / question_.limits.rates.to_host * 1e3 -
                                      begins_ms[step]);
  }
  return least_ms;
}

void OffloadSearch::Start(const std::vector<CheckpointedModule>& units) {
  {
    const solver::StopsLater later;
    Try(units);
  }
  if (question_.is_stopped() || CostMs() <= kNothingMs) return;
  Try(WithCover(question_.problem, units, {.max_units = question_.max_units}));
}

void OffloadSearch::StartFromCovers() {
  for (size_t k = 0; k < kCovers; ++k) {
    if (question_.is_stopped()) return;
    Try(WithCover(question_.problem, {},
                  {.max_units = question_.max_units,
                   .keeps_results = false,
                   .skipped_classes = k}));
  }
}

bool OffloadSearch::Try(const std::vector<CheckpointedModule>& units) {
  const TraceProblem& problem = question_.problem;
  const std::optional<Simulation> saved_run = SimulatedUse(problem, units);
  if (!saved_run || saved_run->recompute_ms >= CostMs() - kSameMs) return false;
  if (saved_run->peak_bytes <= question_.budget_bytes)
    return TryOffloaded(units);
  const double least_ms = saved_run->recompute_ms + LeastStallMs(*saved_run);
  if (least_ms >= CostMs() - kSameMs) return false;
  const std::vector<CheckpointedModule> all = WithAllOffloaded(problem, units);
  const std::optional<Simulation> run = SimulatedUse(problem, all);
  if (!run || run->peak_bytes > question_.budget_bytes) return false;
  const MovableList movables = MovablesOf(problem, all, *run);
  const std::optional<OffloadChoice> choice =
      ChooseWhatMoves({.problem = problem,
                       .movables = movables,
                       .saved_run = *saved_run,
                       .moved_run = *run,
                       .budget_bytes = question_.budget_bytes,
                       .limits = question_.limits,
                       .most_stall_ms = CostMs() - run->recompute_ms});
  const bool may_be_better =
      choice && run->recompute_ms + choice->stall_ms < CostMs() - kSameMs;
  if (!may_be_better) return false;
  std::vector<CheckpointedModule> moved_units = units;
  for (const MovableId m : movables.ids()) {
    if (choice->is_chosen[m]) Offload(movables[m], moved_units);
  }
  return TryOffloaded(std::move(moved_units));
}

bool OffloadSearch::TryOffloaded(std::vector<CheckpointedModule> units) {
  std::optional<Simulation> use = SimulatedUse(question_.problem, units);
  const bool keeps_limits =
      use && use->peak_bytes <= question_.budget_bytes &&
      use->offload.host_peak_bytes <= question_.limits.host_memory_bytes;
  if (!keeps_limits) return false;
  OffloadPlan plan = {.modules = std::move(units), .use = std::move(*use)};
  plan.stall_ms = StallOf(question_.problem, plan.use, question_.limits);
  if (plan.CostMs() >= CostMs() - kSameMs) return false;
  best_ = std::move(plan);
  return true;
}

void OffloadSearch::Improve() {
  if (!best_) return;
  Modules modules;
  for (const CheckpointedModule& unit : best_->modules) {
    modules.push_back(unit.module);
  }
  // Until all have been tried since the last change.
  size_t unchanged = 0;
  for (size_t k = 0; unchanged < modules.size(); k = (k + 1) % modules.size()) {
    if (IsDone()) return;
    unchanged = ImproveUnit(modules[k]) ? 0 : unchanged + 1;
  }
}

void OffloadSearch::ImproveAlike() {
  if (!best_) return;
  for (const Modules& modules : AlikeUnits()) {
    while (ImproveTogether(modules) && !IsDone()) {
    }
  }
}

std::vector<OffloadSearch::Modules> OffloadSearch::AlikeUnits() const {
  const graph::Trace& trace = *question_.problem.trace;
  std::map<std::pair<std::string, size_t>, Modules> by_name;
  for (const CheckpointedModule& unit : best_->modules) {
    const std::string& name = trace.modules[unit.module].class_name;
    by_name[{name, unit.decisions.size()}].push_back(unit.module);
  }
  std::vector<Modules> alike_units;
  for (auto& [key, modules] : by_name) {
    if (modules.size() > 1) alike_units.push_back(std::move(modules));
  }
  return alike_units;
}

TreeNodeId OffloadSearch::NodeOf(graph::ModuleId module) const {
  const TraceProblem& problem = question_.problem;
  const auto candidate =
      std::ranges::find_if(problem.candidates, [&](const CandidateCall& c) {
        return problem.trace->calls[c.call].module == module;
      });
  return candidate->module_node;
}

GroupUses OffloadSearch::UsesOf(graph::ModuleId module) const {
  const auto unit =
      std::ranges::find(best_->modules, module, &CheckpointedModule::module);
  const bool has_groups =
      unit != best_->modules.end() && !unit->decisions.empty();
  if (!has_groups) return {};
  return UsesOfGroups(question_.problem, NodeOf(module), *unit);
}

bool OffloadSearch::IsOpen(graph::ModuleId module, graph::GroupId group,
                           const GroupUses& uses) const {
  const auto& groups = question_.problem.groups[NodeOf(module)].groups;
  return groups[group].rule == graph::GroupRule::kFree &&
         uses[group] != GroupUse::kNone;
}

bool OffloadSearch::ImproveTogether(const Modules& modules) {
  const graph::ModuleId middle = modules[modules.size() / 2];
  const GroupUses uses = UsesOf(middle);
  std::vector<graph::GroupId> open_groups;
  for (const graph::GroupId g : uses.ids()) {
    if (IsOpen(middle, g, uses)) open_groups.push_back(g);
  }
  const std::vector<CheckpointedModule> before = WithoutOffload(best_->modules);
  bool is_better = false;
  const auto try_other = [&](std::initializer_list<graph::GroupId> changed) {
    if (IsDone()) return;
    GroupFlags is_saved = SavedOf(uses);
    for (const graph::GroupId g : changed) is_saved[g] = !is_saved[g];
    std::vector<CheckpointedModule> units = before;
    for (CheckpointedModule& unit : units) {
      if (std::ranges::find(modules, unit.module) == modules.end()) continue;
      unit = UnitThatSaves(question_.problem, NodeOf(unit.module), is_saved);
    }
    is_better |= Try(units);
  };
  for (const graph::GroupId g : open_groups) try_other({g});
  if (is_better) return true;
  for (const graph::GroupId saved_group : open_groups) {
    if (uses[saved_group] != GroupUse::kSaved) continue;
    for (const graph::GroupId other : open_groups) {
      if (uses[other] != GroupUse::kSaved) try_other({saved_group, other});
    }
  }
  return is_better;
}

bool OffloadSearch::ImproveUnit(graph::ModuleId module) {
  bool is_better = false;
  for (const graph::GroupId g : UsesOf(module).ids()) {
    if (question_.is_stopped()) break;
    const GroupUses uses = UsesOf(module);
    // More runs again if less is saved, so that costs less only if the step waits less.
    const bool may_help =
        uses[g] != GroupUse::kSaved || best_->stall_ms > kSameMs;
    if (!may_help || !IsOpen(module, g, uses)) continue;
    GroupFlags is_saved = SavedOf(uses);
    is_saved[g] = !is_saved[g];
    std::vector<CheckpointedModule> units = WithoutOffload(best_->modules);
    *std::ranges::find(units, module, &CheckpointedModule::module) =
        UnitThatSaves(question_.problem, NodeOf(module), is_saved);
    is_better |= Try(units);
  }
  return is_better;
}

}  // namespace acplan::problems
