#include "tests/problems/trace/trace_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/trace/problem/unit_policies.h"
#include "problems/trace/relaxation/miscounted.h"
#include "problems/trace/relaxation/relaxation.h"

namespace acplan::problems {

using solver::SearchStatus;

using graph::CheckpointedModule;
using graph::GroupRule;
using graph::OperatorGroups;
using test_support::StepOptions;

namespace {

graph::Trace StepOf(const TraceCaseKind& kind, unsigned seed) {
  std::mt19937 random(seed);
  graph::Trace step = test_support::RandomStep(random, kind.step);
  if (!kind.joins) return step;
  return graph::WithSegments(step, RunsByChance(step, random));
}

// The root, which contains all operators, has the most plans by far.
JointProblemOptions OptionsOf(const TraceCaseKind& kind,
                              const graph::Profile& profile, unsigned seed) {
  std::mt19937 random(seed + 1);
  JointProblemOptions options;
  const bool has_root = random() % 4 == 0;
  for (size_t m = has_root ? 0 : 1; m < profile.modules.size(); ++m) {
    if (!profile.modules[m].is_leaf) {
      options.ac_units.push_back(profile.modules[m].fqn);
    }
  }
  options.may_skip = kind.skips;
  if (!kind.restricts) return options;
  if (random() % 2 == 0) options.max_units = static_cast<int>(random() % 4);
  std::vector<std::string> names;
  for (const graph::Module& module : profile.modules) {
    if (!module.sac) continue;
    names.insert(names.end(), module.sac->func_names.begin(),
                 module.sac->func_names.end());
  }
  if (names.empty()) return options;
  if (random() % 2 == 0) {
    options.patterns.save = {names[random() % names.size()]};
  }
  if (random() % 2 == 0) {
    options.patterns.recompute = {names[random() % names.size()]};
  }
  return options;
}

// Modules that may be units, and which of them are called inside which.
class Enumerator {
 public:
  Enumerator(const TraceProblem& problem, std::optional<int> max_units)
      : problem_(problem),
        max_units_(max_units.value_or(std::numeric_limits<int>::max())) {
    const auto& candidates = problem.candidates;
    graph::IndexedVector<TreeNodeId, int> index(problem.groups.size(), -1);
    for (const CandidateCall& candidate : candidates) {
      int& unit_index = index[candidate.module_node];
      if (unit_index >= 0) continue;
      unit_index = static_cast<int>(units_.size());
      units_.push_back({.node = candidate.module_node,
                        .module = problem.trace->calls[candidate.call].module});
    }
    for (Unit& unit : units_) unit.excludes.assign(units_.size(), 0);
    for (const CandidateCall& candidate : candidates) {
      const int inner = index[candidate.module_node];
      for (CandidateId c = candidate.parent; c != graph::kNone;
           c = candidates[c].parent) {
        const int outer = index[candidates[c].module_node];
        units_[inner].excludes[outer] = units_[outer].excludes[inner] = 1;
      }
    }
  }

  // Returns the number of plans.
  double Count() const { return Count(0, {}); }

  TracePlans Run() {
    Choose(0);
    return std::move(result_);
  }

  std::vector<CheckpointedModule> ByChance(std::mt19937& random) {
    for (size_t u = 0; u < units_.size(); ++u) {
      if (random() % 2 == 0 || !MayAdd(u, chosen_units_)) continue;
      chosen_units_.push_back(u);
      GroupFlags is_saved = AlwaysSaved(units_[u]);
      for (const graph::GroupId group : FreeGroups(units_[u])) {
        is_saved[group] = random() % 2 == 0;
      }
      modules_.push_back(UnitThatSaves(problem_, units_[u].node, is_saved));
    }
    return std::move(modules_);
  }

 private:
  struct Unit {
    TreeNodeId node = {};
    graph::ModuleId module = {};
    std::vector<char> excludes = {};  // other units
  };

  std::vector<graph::GroupId> FreeGroups(const Unit& unit) const {
    std::vector<graph::GroupId> free;
    for (const graph::GroupId g : problem_.groups[unit.node].groups.ids()) {
      if (problem_.is_choice[unit.node][g]) free.push_back(g);
    }
    return free;
  }

  // Returns, by group, whether every policy saves it; free groups are not
  // saved.
  GroupFlags AlwaysSaved(const Unit& unit) const {
    GroupFlags is_saved;
    for (const auto& group : problem_.groups[unit.node].groups) {
      is_saved.push_back(group.rule == GroupRule::kSave);
    }
    for (const graph::GroupId group : FreeGroups(unit)) is_saved[group] = false;
    return is_saved;
  }

  bool MayAdd(size_t u, const std::vector<size_t>& chosen_units) const {
    return std::ssize(chosen_units) < max_units_ &&
           std::ranges::none_of(chosen_units, [&](size_t other) {
             return units_[u].excludes[other] != 0;
           });
  }

  double Count(size_t u, std::vector<size_t> chosen_units) const {
    if (u == units_.size()) return 1;
    const double plans_without = Count(u + 1, chosen_units);
    if (!MayAdd(u, chosen_units)) return plans_without;
    chosen_units.push_back(u);
    const auto free = static_cast<int>(FreeGroups(units_[u]).size());
    return plans_without +
           std::ldexp(Count(u + 1, std::move(chosen_units)), free);
  }

  void Choose(size_t u) {
    if (u == units_.size()) {
      Simulate();
      return;
    }
    Choose(u + 1);
    if (!MayAdd(u, chosen_units_)) return;
    const std::vector<graph::GroupId> free = FreeGroups(units_[u]);
    chosen_units_.push_back(u);
    for (uint32_t subset = 0; subset >> free.size() == 0; ++subset) {
      GroupFlags is_saved = AlwaysSaved(units_[u]);
      for (size_t k = 0; k < free.size(); ++k) {
        is_saved[free[k]] = (subset >> k & 1) != 0;
      }
      modules_.push_back(UnitThatSaves(problem_, units_[u].node, is_saved));
      Choose(u + 1);
      modules_.pop_back();
    }
    chosen_units_.pop_back();
  }

  void Simulate() {
    try {
      const graph::Simulation use = problem_.simulator.Simulate(modules_);
      result_.plans.push_back({.peak_bytes = use.peak_bytes,
                               .recompute_ms = use.recompute_ms,
                               .modules = modules_});
    } catch (const InputError&) {
      ++result_.refused;
    }
  }

  const TraceProblem& problem_;
  const int max_units_;
  std::vector<Unit> units_;
  std::vector<size_t> chosen_units_;
  std::vector<CheckpointedModule> modules_;
  TracePlans result_;
};

double Tolerance(double ms) { return 1e-9 * (1 + std::abs(ms)); }

}  // namespace

std::vector<TraceCaseKind> TraceCaseKinds() {
  std::vector<TraceCaseKind> kinds = {
      {.name = "chains"},
      {.name = "skips", .step = {.skips = true}},
      {.name = "shared_arguments", .step = {.shares_arguments = true}},
      {.name = "shared_storages",
       .step = {.skips = true, .shares_storages = true}},
      {.name = "nested", .step = {.blocks_most = 3, .nests = true}},
      {.name = "repeated", .step = {.blocks_most = 3, .repeats = true}},
      {.name = "shared_modules",
       .step = {.blocks_most = 3, .skips = true, .shares_modules = true}},
      {.name = "kept_attributes", .step = {.keeps = true}},
      {.name = "in_place_and_random", .step = {.writes = true, .draws = true}},
      {.name = "odd_ends", .step = {.has_odd_ends = true}},
      {.name = "sparse",
       .step = {.blocks_most = 3, .repeats = true, .makes_sparse = true}},
      {.name = "restricted",
       .step = {.shares_storages = true, .draws = true},
       .restricts = true},
      {.name = "restricted_and_repeated",
       .step = {.blocks_most = 3, .shares_modules = true, .repeats = true},
       .restricts = true},
      {.name = "everything",
       .step = {.blocks_most = 3,
                .nests = true,
                .skips = true,
                .shares_arguments = true,
                .shares_storages = true,
                .shares_modules = true,
                .repeats = true,
                .writes = true,
                .draws = true,
                .keeps = true,
                .has_odd_ends = true}},
  };
  const size_t count = kinds.size();
  for (size_t k = 0; k < count; ++k) {
    kinds.push_back(kinds[k]);
    kinds.back().name += "_skipping";
    kinds.back().skips = true;
  }
  const TraceCaseKind everything = kinds.back();
  kinds.push_back({.name = "segments",
                   .step = {.blocks_most = 3, .skips = true},
                   .skips = true,
                   .joins = true});
  kinds.push_back(
      {.name = "segments_restricted",
       .step = {.blocks_most = 3, .shares_arguments = true, .draws = true},
       .restricts = true,
       .joins = true});
  kinds.push_back(everything);
  kinds.back().name = "segments_and_everything";
  kinds.back().joins = true;
  return kinds;
}

std::vector<graph::ModuleRun> RunsByChance(const graph::Trace& trace,
                                           std::mt19937& random) {
  std::vector<graph::ModuleRun> runs;
  for (const std::vector<graph::ModuleId>& children :
       graph::LongestRuns(trace)) {
    size_t first = random() % 2;
    while (first + 1 < children.size()) {
      const size_t last = first + 1 + random() % (children.size() - first - 1);
      runs.push_back({.first = children[first], .last = children[last]});
      if (last - first > 1) {
        runs.push_back({.first = children[first], .last = children[last - 1]});
      }
      first = last + 1;
    }
  }
  return runs;
}

TraceCase::TraceCase(const TraceCaseKind& kind, unsigned seed)
    : trace(StepOf(kind, seed)),
      profile(graph::Aggregate(trace)),
      tree(profile),
      options(OptionsOf(kind, profile, seed)),
      problem(BuildTraceProblem(trace, profile, tree, options)) {}

int64_t TracePlans::LeastPeakBytes() const {
  return std::ranges::min_element(plans, {}, &Plan::peak_bytes)->peak_bytes;
}

std::optional<double> TracePlans::LeastMs(int64_t budget_bytes) const {
  std::optional<double> least;
  for (const Plan& plan : plans) {
    if (plan.peak_bytes > budget_bytes) continue;
    least = std::min(least.value_or(plan.recompute_ms), plan.recompute_ms);
  }
  return least;
}

std::vector<CheckpointedModule> PlanByChance(const TraceProblem& problem,
                                             std::mt19937& random) {
  return Enumerator(problem, {}).ByChance(random);
}

std::optional<TracePlans> EnumeratePlans(const TraceProblem& problem,
                                         std::optional<int> max_units,
                                         int64_t most) {
  Enumerator enumerator(problem, max_units);
  if (enumerator.Count() > static_cast<double>(most)) return std::nullopt;
  return enumerator.Run();
}

std::string Mismatch(const TracePlans& plans, int64_t budget_bytes,
                     const TraceProblem& problem,
                     const TraceSolution& solution) {
  const std::optional<double> least = plans.LeastMs(budget_bytes);
  const double least_ms =
      least.value_or(std::numeric_limits<double>::infinity());
  const bool has_plan = solution.status == SearchStatus::kOptimal ||
                        solution.status == SearchStatus::kFeasible;
  if (solution.bound_ms > least_ms + Tolerance(least_ms)) {
    return fmt::format("bound {} ms, but a plan recomputes {} ms",
                       solution.bound_ms, least_ms);
  }
  if (solution.status == SearchStatus::kInfeasible && least) {
    return fmt::format("infeasible, but a plan recomputes {} ms", least_ms);
  }
  if (!has_plan) return {};
  const graph::Simulation use = problem.simulator.Simulate(solution.modules);
  if (use.peak_bytes > budget_bytes || use != solution.use) {
    return fmt::format("a plan of {} bytes, said to need {}", use.peak_bytes,
                       solution.use.peak_bytes);
  }
  const double ms = use.recompute_ms;
  const bool is_among = std::ranges::any_of(plans.plans, [&](const auto& plan) {
    return plan.peak_bytes == use.peak_bytes &&
           std::abs(plan.recompute_ms - ms) <= Tolerance(ms);
  });
  if (!is_among) return "a plan that is none";
  if (solution.status == SearchStatus::kOptimal &&
      ms > least_ms + Tolerance(least_ms)) {
    return fmt::format("optimal with {} ms, but a plan recomputes {} ms", ms,
                       least_ms);
  }
  return {};
}

std::string RelaxationMismatch(const TraceProblem& problem,
                               const Witnesses& witnesses,
                               const std::vector<Decision>& decisions,
                               int64_t budget_bytes, double least_ms) {
  TraceRelaxation relaxation = Relax(problem, witnesses, decisions);
  relaxation.joint.relaxed.budget_bytes = static_cast<double>(budget_bytes);
  const ModuleSolution solution = SolveJointByLabels(relaxation.joint);
  if (solution.status == SearchStatus::kInfeasible) {
    return fmt::format("relaxation infeasible, but a plan recomputes {} ms",
                       least_ms);
  }
  if (solution.status != SearchStatus::kOptimal) return "relaxation not solved";
  if (solution.ms > least_ms + Tolerance(least_ms)) {
    return fmt::format("relaxation {} ms, but a plan recomputes {} ms",
                       solution.ms, least_ms);
  }
  return {};
}

Witnesses RandomWitnesses(const TraceProblem& problem,
                          const std::vector<Decision>& decisions,
                          std::mt19937& random) {
  // Returns all candidates that may hold a storage: as many at once as there
  // are innermost ones.
  const auto of_candidates = [&](graph::StorageId s) {
    std::vector<Witness> holders;
    for (const CandidateId c : problem.makers_of[s]) {
      if (random() % 2 == 0) holders.push_back(ResultWitness(c));
    }
    for (const CandidateId c : problem.frames_of[s]) {
      const bool is_new =
          std::ranges::find(holders, c, &Witness::candidate) == holders.end();
      if (is_new && random() % 2 == 0) {
        holders.push_back(ArgumentWitness(c));
      }
    }
    const auto is_innermost = [&](const Witness& witness) {
      return std::ranges::none_of(holders, [&](const Witness& other) {
        return other.candidate() > witness.candidate() &&
               other.candidate() <=
                   problem.candidates[witness.candidate()].last;
      });
    };
    const auto most = std::ranges::count_if(holders, is_innermost);
    for (Witness& holder : holders) {
      holder.share = 1.0 / static_cast<double>(most);
    }
    return holders;
  };
  const auto any = [&](graph::StorageId s) -> std::vector<Witness> {
    const std::vector<graph::SavedId>& saved = problem.saved_of[s];
    for (const Decision& decision : decisions) {
      if (decision.kind == Decision::Kind::kLife && decision.storage() == s &&
          decision.is_so && random() % 2 == 0) {
        return {DecidedWitness(decision.time())};
      }
    }
    if (random() % 2 == 0) {
      std::vector<Witness> holders = of_candidates(s);
      if (!holders.empty()) return holders;
    }
    if (saved.empty() || random() % 4 == 0) return {Witness()};
    return {SavedWitness(saved[random() % saved.size()])};
  };
  Witnesses witnesses = FirstWitnesses(problem);
  for (const graph::StorageId s : witnesses.ids()) {
    if (random() % 2 == 0) witnesses[s] = any(s);
    if (random() % 3 == 0) {
      witnesses[s] = Blended(std::move(witnesses[s]), any(s),
                             static_cast<double>(1 + random() % 3) / 4);
    }
  }
  return witnesses;
}

std::vector<Decision> RandomDecisions(const TraceProblem& problem,
                                      const TracePlans::Plan& plan,
                                      std::mt19937& random) {
  const graph::Trace& trace = *problem.trace;
  std::vector<Decision> decisions;
  // Without witnesses all live bytes are missing.
  const Witnesses none(trace.storages.size());
  for (auto k = random() % 4; k > 0; --k) {
    const auto at = static_cast<graph::Time>(random() % trace.operators.size());
    const auto storage =
        graph::IdAt<graph::StorageId>(random() % trace.storages.size());
    const std::vector<Miscounted> live =
        FindMiscounted(problem, plan.modules, at, none);
    if (StartOf(trace.storages[storage].born) > at) continue;
    Decision& life = decisions.emplace_back(LifeDecision(storage, at));
    life.is_so = std::ranges::any_of(live, [&](const Miscounted& m) {
      return m.storage == storage && !m.is_copy;
    });
  }
  for (auto k = random() % 3; k > 0 && !problem.candidates.empty(); --k) {
    const CandidateCall& candidate =
        problem.candidates[graph::IdAt<CandidateId>(random() %
                                                    problem.candidates.size())];
    const graph::ModuleId module = trace.calls[candidate.call].module;
    const auto unit =
        std::ranges::find(plan.modules, module, &CheckpointedModule::module);
    if (random() % 2 == 0) {
      Decision& is_unit =
          decisions.emplace_back(UnitDecision(candidate.module_node));
      is_unit.is_so = unit != plan.modules.end();
      continue;
    }
    // The candidate's policy if it is a unit.
    const OperatorGroups& groups = problem.groups[candidate.module_node];
    // A call that can only run again as a whole has no groups.
    if (groups.groups.empty()) continue;
    const auto group =
        graph::IdAt<graph::GroupId>(random() % groups.groups.size());
    if (groups.groups[group].rule != GroupRule::kFree) continue;
    const GroupUse use =
        unit == plan.modules.end()
            ? GroupUse::kNone
            : UsesOfGroups(problem, candidate.module_node, *unit)[group];
    Decision& is_recomputed =
        decisions.emplace_back(GroupDecision(candidate.module_node, group));
    is_recomputed.is_so = use == GroupUse::kNone ? random() % 2 == 0
                                                 : use == GroupUse::kRunsAgain;
  }
  return decisions;
}

std::vector<int64_t> BudgetsAbout(const TracePlans& plans, unsigned seed) {
  std::mt19937 random(seed + 2);
  std::vector<int64_t> peaks;
  for (const TracePlans::Plan& plan : plans.plans) {
    peaks.push_back(plan.peak_bytes);
  }
  const int64_t baseline = peaks.front();
  std::vector<int64_t> budgets = {baseline, baseline - 1};
  for (int k = 0; k < 2; ++k) budgets.push_back(peaks[random() % peaks.size()]);
  std::ranges::sort(peaks);
  for (const int64_t less : {0, 1, 512}) budgets.push_back(peaks[0] - less);
  const auto last =
      peaks.begin() + (std::ranges::unique(peaks).begin() - peaks.begin());
  const auto distinct = last - peaks.begin();
  for (const int percent : {10, 25, 50, 75}) {
    const int64_t peak = peaks[distinct * percent / 100];
    if (peak < baseline) budgets.push_back(peak);
  }
  std::ranges::sort(budgets);
  const auto twice = std::ranges::unique(budgets);
  budgets.erase(twice.begin(), twice.end());
  return budgets;
}

}  // namespace acplan::problems
