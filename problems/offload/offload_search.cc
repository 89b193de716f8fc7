#include "problems/offload/offload_search.h"

#include <algorithm>
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

}  // namespace

OffloadSearch::OffloadSearch(OffloadSearchQuestion question)
    : question_(std::move(question)),
      rounding_bytes_(RoundingBytes(*question_.problem.trace)) {}

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

bool OffloadSearch::Try(const std::vector<CheckpointedModule>& units,
                        Choices choices) {
  const TraceProblem& problem = question_.problem;
  const int64_t budget = question_.budget_bytes;
  const std::optional<Simulation> saved_run = SimulatedUse(problem, units);
  if (!saved_run || saved_run->recompute_ms >= CostMs() - kSameMs) return false;
  OffloadPlan plan = {.modules = units};
  if (saved_run->peak_bytes > budget) {
    const double least_ms = saved_run->recompute_ms + LeastStallMs(*saved_run);
    if (least_ms >= CostMs() - kSameMs) return false;
    const std::vector<CheckpointedModule> all =
        WithAllOffloaded(problem, units);
    const std::optional<Simulation> run = SimulatedUse(problem, all);
    if (!run || run->peak_bytes > budget) return false;
    const MovableList movables = MovablesOf(problem, all, *run);
    const std::optional<OffloadChoice> choice = ChooseWhatMoves(
        {.problem = problem,
         .movables = movables,
         .saved_run = *saved_run,
         .moved_run = *run,
         .budget_bytes = budget,
         .limits = question_.limits,
         .most_stall_ms = CostMs() - run->recompute_ms,
         .first_units =
             choices == Choices::kOfBest ? &best_->modules : nullptr});
    const bool may_be_better =
        choice && run->recompute_ms + choice->stall_ms < CostMs() - kSameMs;
    if (!may_be_better) return false;
    for (const MovableId m : movables.ids()) {
      if (choice->is_chosen[m]) Offload(movables[m], plan.modules);
    }
  }
  std::optional<Simulation> use = SimulatedUse(problem, plan.modules);
  const bool keeps_limits =
      use && use->peak_bytes <= question_.budget_bytes &&
      use->offload.host_peak_bytes <= question_.limits.host_memory_bytes;
  if (!keeps_limits) return false;
  plan.use = std::move(*use);
  plan.stall_ms = StallOf(problem, plan.use, question_.limits);
  if (plan.CostMs() >= CostMs() - kSameMs) return false;
  best_ = std::move(plan);
  return true;
}

void OffloadSearch::Improve() {
  if (!best_) return;
  std::vector<graph::ModuleId> modules;
  for (const CheckpointedModule& unit : best_->modules) {
    modules.push_back(unit.module);
  }
  do {
    // Until all have been tried since the last change.
    size_t unchanged = 0;
    for (size_t k = 0; unchanged < modules.size();
         k = (k + 1) % modules.size()) {
      if (question_.is_stopped() || CostMs() <= kNothingMs) return;
      unchanged = ImproveUnit(modules[k]) ? 0 : unchanged + 1;
    }
  } while (Try(WithoutOffload(best_->modules)));
}

bool OffloadSearch::ImproveUnit(graph::ModuleId module) {
  const TraceProblem& problem = question_.problem;
  const auto candidate =
      std::ranges::find_if(problem.candidates, [&](const CandidateCall& c) {
        return problem.trace->calls[c.call].module == module;
      });
  const TreeNodeId node = candidate->module_node;
  const auto& groups = problem.groups[node].groups;
  bool is_better = false;
  for (const graph::GroupId g : groups.ids()) {
    if (question_.is_stopped()) break;
    std::vector<CheckpointedModule> units = WithoutOffload(best_->modules);
    const auto unit =
        std::ranges::find(units, module, &CheckpointedModule::module);
    if (unit == units.end() || unit->decisions.empty()) break;
    const GroupUses uses = UsesOfGroups(problem, node, *unit);
    const bool is_open =
        groups[g].rule == graph::GroupRule::kFree && uses[g] != GroupUse::kNone;
    // More runs again if less is saved, so that costs less only if the step waits less.
    const bool may_help =
        uses[g] != GroupUse::kSaved || best_->stall_ms > kSameMs;
    if (!is_open || !may_help) continue;
    GroupFlags is_saved;
    for (const GroupUse use : uses) is_saved.push_back(use == GroupUse::kSaved);
    is_saved[g] = uses[g] != GroupUse::kSaved;
    *unit = UnitThatSaves(problem, node, is_saved);
    is_better |= Try(units, Choices::kOfBest);
  }
  return is_better;
}

}  // namespace acplan::problems
