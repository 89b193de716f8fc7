#include "problems/trace_planner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <map>
#include <utility>

#include "graph/input_error.h"
#include "problems/joint_labels.h"
#include "problems/trace_memory.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;
using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr int64_t kAllocationUnit = 512;
constexpr int kMostCorrections = 40;
constexpr int kMostSubproblems = 200;
// Of witnesses, before a storage is decided about.
constexpr int kRounds = 3;

// A part of the plans, and what is known of it.
struct Subproblem {
  std::vector<Decision> decisions = {};
  Witnesses witnesses = {};
  double bound_ms = 0;
};

class Search {
 public:
  Search(const TraceProblem& problem, int64_t budget_bytes,
         const SearchLimits& limits)
      : problem_(problem), budget_bytes_(budget_bytes), limits_(limits) {}

  TraceSolution Run(const std::vector<CheckpointedModule>& known) {
    if (!known.empty()) Try(known);
    std::vector<Subproblem> open = {{.witnesses = FirstWitnesses(problem_)}};
    double bound_ms = kInf;  // of what is not open any more
    for (int done = 0; done < kMostSubproblems && !open.empty() && !IsStopped();
         ++done) {
      const auto least =
          std::ranges::min_element(open, {}, &Subproblem::bound_ms);
      Subproblem next = std::move(*least);
      open.erase(least);
      if (next.bound_ms >= BestMs() * (1 - kTolerance)) {
        bound_ms = std::min(bound_ms, next.bound_ms);
        continue;
      }
      for (Subproblem& part : Branch(next)) open.push_back(std::move(part));
      bound_ms = std::min(bound_ms, closed_bound_ms_);
    }
    for (const Subproblem& part : open) {
      bound_ms = std::min(bound_ms, part.bound_ms);
    }
    if (bound_ms == kInf && result_.status == SearchStatus::kNoSolution) {
      result_.status = SearchStatus::kInfeasible;
    }
    result_.bound_ms = std::min(bound_ms, BestMs());
    if (result_.status == SearchStatus::kFeasible && result_.use.recompute_ms <= result_.bound_ms * (1 + kTolerance) + 1e-15) result_.status = SearchStatus::kOptimal;
    result_.seconds = stopwatch_.Seconds();
    return std::move(result_);
  }

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity();
  static constexpr double kTolerance = 1e-9;
  const bool debug = std::getenv("TP_DEBUG") != nullptr;

  double BestMs() const {
    return result_.status == SearchStatus::kFeasible ? result_.use.recompute_ms
                                                     : kInf;
  }

  // Improves the bound of a part, and splits it where that does not settle it.
  std::vector<Subproblem> Branch(Subproblem& part) {
    closed_bound_ms_ = kInf;
    std::optional<Decision> decision;
    Witnesses witnesses = part.witnesses;
    double best_bound_ms = -kInf;
    Witnesses target;
    for (int round = 0; round < kRounds; ++round) {
      TraceRelaxation relaxation = Relax(problem_, witnesses, part.decisions);
      relaxation.joint.relaxed.budget_bytes =
          static_cast<double>(budget_bytes_);
      const ModuleSolution relaxed =
          SolveJointByLabels(relaxation.joint, Left());
      Count(relaxed);
      if (debug) std::printf("depth %zu relaxed status %d ms %.6f bound %.6f part %.6f labels %lld %.3fs\n", part.decisions.size(), (int)relaxed.status, relaxed.ms, relaxed.bound_ms, part.bound_ms, (long long)relaxed.nodes, stopwatch_.Seconds());
      if (relaxed.status == SearchStatus::kInfeasible) return {};
      if (relaxed.status == SearchStatus::kNoSolution) break;
      const auto modules = CheckpointedModules(problem_, relaxation, relaxed.units);
      const Simulation use = Try(modules);
      if (debug) std::printf("  round %d: units %zu sim peak %lld (over %lld) ms %.6f t=%.3f\n", round, relaxed.units.size(), (long long)use.peak_bytes, (long long)(use.peak_bytes-budget_bytes_), use.recompute_ms, stopwatch_.Seconds());
      if (relaxed.bound_ms > best_bound_ms) {
        best_bound_ms = relaxed.bound_ms;
        part.bound_ms = std::max(part.bound_ms, relaxed.bound_ms);
        part.witnesses = witnesses;
        target = witnesses;
        decision = FirstInconsistency(part, relaxation, relaxed.units);
        if (!decision) decision = Miscount(part, modules, use, target);
        if (!decision) decision = MissedInRecomputation(part, modules, use);
      }
      if (part.bound_ms >= BestMs() * (1 - kTolerance) || IsStopped()) {
        closed_bound_ms_ = part.bound_ms;
        return {};
      }
      if (result_.status != SearchStatus::kFeasible) CorrectUntilFeasible(relaxation, relaxed.units, use);
      if (target == part.witnesses) break;
      witnesses = part.witnesses;
      for (size_t s = 0; s < witnesses.size(); ++s) {
        if (target[s] == witnesses[s]) continue;
        witnesses[s] = Blended(std::move(witnesses[s]), target[s], 1.0 / (round + 2));
      }
    }
    if (debug && decision) std::printf("  decide %d of %d at %d\n", (int)decision->kind, decision->of, decision->at);
    if (!decision) {
      closed_bound_ms_ = part.bound_ms;
      return {};
    }
    std::vector<Subproblem> parts;
    for (const bool is_so : {true, false}) {
      parts.push_back(part);
      decision->is_so = is_so;
      parts.back().decisions.push_back(*decision);
    }
    return parts;
  }

  static bool IsDecided(const Subproblem& part, const Decision& decision) {
    return std::ranges::any_of(part.decisions, [&](const Decision& d) {
      return d.IsAbout(decision);
    });
  }

  // Calls of one module of which only some are units, or which differ.
  std::optional<Decision> FirstInconsistency(const Subproblem& part, const TraceRelaxation& relaxation, const std::vector<ChosenUnit>& units) const {
    if (!problem_.has_repeated_calls) return std::nullopt;
    std::map<int, std::vector<const ChosenUnit*>> units_of;  // a module
    for (const ChosenUnit& unit : units) {
      units_of[problem_.candidates[problem_.candidate_at[unit.node]].module_node].push_back(&unit);
    }
    for (const auto& [module, of] : units_of) {
      const auto calls = std::ranges::count(problem_.candidates, module, &TraceProblem::Candidate::module_node);
      if (calls == 1) continue;
      const Decision is_unit = {.kind = Decision::Kind::kUnit, .of = module};
      if (calls > std::ssize(of) && !IsDecided(part, is_unit)) return is_unit;
      std::vector<char> first;
      for (const ChosenUnit* unit : of) {
        const std::vector<char> recomputed = RecomputedGroups(relaxation, *unit);
        if (first.empty()) first = recomputed;
        for (size_t g = 0; g < first.size(); ++g) {
          const Decision group = {.kind = Decision::Kind::kGroup, .of = module, .at = static_cast<int32_t>(g)};
          if (first[g] != recomputed[g] && !IsDecided(part, group)) return group;
        }
      }
    }
    return std::nullopt;
  }

  // The storage of which most is missing where the plan breaks the budget; with
  // witnesses that count all that are missing.
  std::optional<Decision> Miscount(const Subproblem& part, const std::vector<CheckpointedModule>& modules, const Simulation& use, Witnesses& target) const {
    std::optional<Decision> decision;
    int64_t most = 0;
    for (const int32_t time : ViolatedTimes(use)) {
      for (Miscounted& m : FindMiscounted(problem_, modules, time, part.witnesses)) {
        const Decision next = {.kind = Decision::Kind::kLife, .of = m.storage, .at = time};
        if (IsDecided(part, next)) continue;
        target[m.storage] = std::move(m.witnesses);
        if (m.bytes <= most) continue;
        most = m.bytes;
        decision = next;
      }
    }
    return decision;
  }

  // A group of a unit that breaks the budget while it runs again: one that runs
  // there, or else the one of which most is saved for later.
  std::optional<Decision> MissedInRecomputation(const Subproblem& part, const std::vector<CheckpointedModule>& modules, const Simulation& use) const {
    int64_t worst = budget_bytes_;
    std::optional<Decision> decision;
    for (size_t k = 0; k < use.steps.size(); ++k) {
      const Simulation::Step& step = use.steps[k];
      if (step.redone < 0 || use.live_bytes[k] <= worst) continue;
      const auto& candidate = problem_.candidates[problem_.candidate_of[step.redone]];
      const graph::TraceCall& call = problem_.trace->calls[step.redone];
      if (step.op < call.start) continue;
      const auto& groups = problem_.groups[candidate.module_node];
      const auto group_of = [&](int32_t op) {
        return Decision{.kind = Decision::Kind::kGroup, .of = candidate.module_node, .at = groups.group_of[op - call.start]};
      };
      std::optional<Decision> next = group_of(step.op);
      if (groups.groups[next->at].rule != graph::GroupRule::kFree || IsDecided(part, *next)) {
        const auto unit = std::ranges::find(modules, call.module, &CheckpointedModule::module);
        next.reset();
        int64_t most = 0;
        std::map<int32_t, int64_t> saved;
        for (int32_t op = step.op + 1; op < call.end; ++op) {
          if (!unit->save[op - call.start]) continue;
          const Decision later = group_of(op);
          if (groups.groups[later.at].rule != graph::GroupRule::kFree || IsDecided(part, later)) continue;
          for (const int32_t s : problem_.trace->operators[op].creates) saved[later.at] += problem_.trace->storages[s].bytes;
          if (saved[later.at] > most) { most = saved[later.at]; next = later; }
        }
      }
      if (!next) continue;
      worst = use.live_bytes[k];
      decision = next;
    }
    return decision;
  }

  void CorrectUntilFeasible(TraceRelaxation relaxation, std::vector<ChosenUnit> units, Simulation use) {
    for (int round = 0; round < kMostCorrections && !IsStopped() && use.peak_bytes > budget_bytes_; ++round) {
      Correct(units, use, relaxation.joint);
      const ModuleSolution next = SolveJointByLabels(relaxation.joint, Left());
      Count(next);
      if (next.units.empty()) { if (debug) std::printf(" corrected: status %d\n", (int)next.status); break;}
      units = next.units;
      use = Try(CheckpointedModules(problem_, relaxation, units));
      if (debug) std::printf(" round %d: units %zu sim peak %lld (over %lld) ms %.6f t=%.3f\n", round, units.size(), (long long)use.peak_bytes, (long long)(use.peak_bytes-budget_bytes_), use.recompute_ms, stopwatch_.Seconds());
    }
  }

  SearchLimits Left() const {
    SearchLimits left = limits_;
    left.time_limit_s =
        std::max(0.0, limits_.time_limit_s - stopwatch_.Seconds());
    return left;
  }

  void Count(const ModuleSolution& solution) {
    result_.nodes += solution.nodes;
    result_.rows = std::max(result_.rows, solution.rows);
    result_.columns = std::max(result_.columns, solution.columns);
  }

  bool IsStopped() const {
    return stopwatch_.Seconds() > limits_.time_limit_s ||
           (limits_.interrupted && limits_.interrupted->load());
  }

  Simulation Try(const std::vector<CheckpointedModule>& modules) {
    Simulation use = UseOf(problem_, modules);
    const bool is_better =
        use.peak_bytes <= budget_bytes_ &&
        (result_.status != SearchStatus::kFeasible ||
         use.recompute_ms < result_.use.recompute_ms);
    if (is_better) {
      result_.status = SearchStatus::kFeasible;
      result_.modules = modules;
      result_.use = use;
    }
    return use;
  }

  // Of each record that the plan breaks the time that breaks it most, the worst
  // first.
  std::vector<int32_t> ViolatedTimes(const Simulation& use) const {
    std::map<int, std::pair<int64_t, int32_t>> worst;  // a record
    const std::vector<int32_t> times_of = TimesOf(use);
    for (size_t k = 0; k < use.steps.size(); ++k) {
      const Simulation::Step& step = use.steps[k];
      const int32_t time = times_of[k];
      if (step.redone >= 0 || use.live_bytes[k] <= budget_bytes_) continue;
      auto& [bytes, at] = worst[problem_.record_of[time]];
      if (use.live_bytes[k] > bytes) {
        bytes = use.live_bytes[k];
        at = time;
      }
    }
    std::vector<std::pair<int64_t, int32_t>> sorted;
    for (const auto& [record, of] : worst) sorted.push_back(of);
    std::ranges::sort(sorted, std::greater<>());
    std::vector<int32_t> times;
    for (const auto& [bytes, at] : sorted) times.push_back(at);
    std::ranges::reverse(times);
    return times;
  }

  // Raises what the simulation shows to be too low.
  void Correct(const std::vector<ChosenUnit>& units, const Simulation& use,
               JointProblem& joint) const {
    std::map<int,int64_t> seen;
    std::vector<ModuleProblem::Node>& nodes = joint.relaxed.nodes;
    const auto released_before = [&](int node) {
      double bytes = 0;
      for (const ChosenUnit& unit : units) {
        const bool is_around = unit.node <= node &&
            node < unit.node + nodes[unit.node].subtree_size;
        if (!is_around && nodes[unit.node].time < nodes[node].time) {
          bytes += unit.net_bytes;
        }
      }
      return bytes;
    };
    const std::vector<int32_t> times = TimesOf(use);
    for (size_t k = 0; k < use.steps.size(); ++k) {
      const Simulation::Step& step = use.steps[k];
      const int32_t time = times[k];
      if (use.live_bytes[k] <= budget_bytes_) continue;
      int node = problem_.record_of[time];
      int unit_node = -1;
      if (step.redone >= 0) {
        unit_node = problem_.candidates[problem_.candidate_of[step.redone]].node;
      } else {
        for (const ChosenUnit& unit : units) {
          if (unit.node <= node &&
              node < unit.node + nodes[unit.node].subtree_size) {
            unit_node = unit.node;
          }
        }
      }
      if (unit_node >= 0) node = unit_node;
      const double least =
          static_cast<double>(use.live_bytes[k]) + released_before(node);
      if (debug) { auto& v = seen[step.redone>=0 ? -node-1000 : unit_node>=0? -node : node]; v = std::max(v, use.live_bytes[k]-budget_bytes_);}
      if (unit_node >= 0) {
        nodes[node].unit_base_bytes =
            std::max(*nodes[node].unit_base_bytes, least);
      } else {
        nodes[node].base_bytes = std::max(nodes[node].base_bytes, least);
      }
    }
    if (debug) { int n=0; for (auto& [a,b]: seen) if (n++<6) std::printf("    at %d over %lld\n", a, (long long)b);}
  }

  const TraceProblem& problem_;
  const int64_t budget_bytes_;
  const SearchLimits& limits_;
  const solver::Stopwatch stopwatch_;
  TraceSolution result_;
  double closed_bound_ms_ = kInf;
};

}  // namespace

TraceSolution SolveTraceProblem(const TraceProblem& problem,
                                int64_t budget_bytes,
                                const SearchLimits& limits,
                                const std::vector<CheckpointedModule>& known) {
  // Live bytes come in units of an allocation.
  return Search(problem, budget_bytes / kAllocationUnit * kAllocationUnit,
                limits)
      .Run(known);
}

MinimumBudget FindMinimumBudget(const TraceProblem& problem,
                                const SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  const TraceRelaxation relaxation = Relax(problem, FirstWitnesses(problem));
  const auto units_of = [](int64_t bytes) {
    return (bytes + kAllocationUnit - 1) / kAllocationUnit;
  };
  // In allocation units: some plan meets `most`, none what is below `least`.
  int64_t most = units_of(UseOf(problem, {}).peak_bytes);
  int64_t least = std::min(
      most, units_of(FindMinimumBudget(relaxation.joint.relaxed, limits).bytes));
  SearchLimits any = limits;
  any.gap = 1;
  any.on_progress = nullptr;
  // The relaxation's bound is often met, or nearly.
  for (int64_t step = 0; least < most;) {
    any.time_limit_s = std::max(1.0, limits.time_limit_s - stopwatch.Seconds());
    const int64_t middle = std::min(least + step, least + (most - least) / 2);
    const TraceSolution found =
        SolveTraceProblem(problem, middle * kAllocationUnit, any);
    if (found.status == SearchStatus::kInfeasible) {
      least = middle + 1;
      step = 4 * step + 1;
    } else if (found.status == SearchStatus::kNoSolution) {
      return {.bytes = most * kAllocationUnit, .proven = false};
    } else {
      most = units_of(found.use.peak_bytes);
    }
  }
  return {.bytes = most * kAllocationUnit, .proven = true};
}

}  // namespace acplan::problems
