#include "problems/trace_planner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
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

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;
constexpr int64_t kAllocationUnit = 512;

constexpr int kMostParts = 200;
// Relaxations of a part: before it is split, and where what is missing is
// decided already.
constexpr int kRounds = 3;
constexpr int kMostRounds = 8;
// A search that makes as many takes long.
constexpr int64_t kManyLabels = 1'000'000;
// Searches for a plan near one that does not fit.
constexpr int kMostRepairs = 24;
constexpr int kRepairRounds = 8;
constexpr int kFirstRepairRounds = 40;
constexpr double kGapOfRepairs = 1e-3;
constexpr double kGapOfFirst = .02;

// Some of the plans, and what is known of them.
struct Part {
  std::vector<Decision> decisions = {};
  // Those that gave the bound, and those to try next.
  Witnesses witnesses = {};
  Witnesses next = {};
  double bound_ms = 0;

  bool IsDecided(const Decision& decision) const {
    return std::ranges::any_of(
        decisions, [&](const Decision& d) { return d.Settles(decision); });
  }

  // The latest time at which a storage is decided to be live.
  std::optional<int32_t> LiveUntil(int32_t storage) const {
    std::optional<int32_t> until;
    for (const Decision& d : decisions) {
      if (d.kind == Decision::Kind::kLife && d.of == storage && d.is_so) {
        until = std::max(until.value_or(d.at), d.at);
      }
    }
    return until;
  }
};

// A relaxation's plan, simulated.
struct Tried {
  TraceRelaxation relaxation = {};
  std::vector<ChosenUnit> units = {};
  std::vector<CheckpointedModule> modules = {};
  Simulation use = {};
};

Witnesses Blend(const Witnesses& of, const Witnesses& with, double weight) {
  Witnesses blended = of;
  for (size_t s = 0; s < of.size(); ++s) {
    if (of[s] != with[s]) blended[s] = Blended(of[s], with[s], weight);
  }
  return blended;
}

class Search {
 public:
  Search(const TraceProblem& problem, int64_t budget_bytes,
         const SearchLimits& limits)
      : problem_(problem), budget_bytes_(budget_bytes), limits_(limits) {}

  TraceSolution Run(const std::vector<CheckpointedModule>& known) {
    Try({});
    if (!known.empty()) Try(known);
    Part all = {.witnesses = FirstWitnesses(problem_)};
    all.next = all.witnesses;
    FindFirst(all.witnesses);
    current_bound_ms_ = kInf;
    open_.push_back(std::move(all));
    int parts = 0;
    for (; parts < kMostParts && !open_.empty() && !IsStopped(); ++parts) {
      const auto least = std::ranges::min_element(open_, {}, &Part::bound_ms);
      Part part = std::move(*least);
      open_.erase(least);
      if (IsSettled(part.bound_ms)) {
        Close(part.bound_ms);
      } else {
        current_bound_ms_ = part.bound_ms;
        Branch(std::move(part));
        current_bound_ms_ = kInf;
      }
    }
    if (!open_.empty() && result_.stopped_by == StoppedBy::kNothing) {
      result_.stopped_by = StoppedBy::kNodes;
    }
    Conclude();
    return std::move(result_);
  }

 private:
  // A plan in little time, whatever the proof takes.
  void FindFirst(const Witnesses& witnesses) {
    TraceRelaxation relaxation = Relax(problem_, witnesses);
    const ModuleSolution relaxed =
        Solve(relaxation.joint, std::max(limits_.gap, kGapOfFirst));
    if (relaxed.units.empty()) return;
    std::optional<Tried> tried = TryPlan(std::move(relaxation), relaxed.units);
    if (tried && tried->use.peak_bytes > budget_bytes_) {
      Repair(std::move(*tried));
    }
  }

  double BestMs() const {
    return result_.status == SearchStatus::kFeasible ? result_.use.recompute_ms
                                                     : kInf;
  }

  // Whether no plan is better that costs at least so much.
  bool IsSettled(double bound_ms) const {
    return bound_ms >= BestMs() * (1 - kTolerance);
  }

  void Close(double bound_ms) {
    closed_bound_ms_ = std::min(closed_bound_ms_, bound_ms);
  }

  // No plan recomputes less.
  double Bound() const {
    double bound_ms = std::min({closed_bound_ms_, current_bound_ms_, BestMs()});
    for (const Part& part : open_) {
      bound_ms = std::min(bound_ms, part.bound_ms);
    }
    return bound_ms;
  }

  void Conclude() {
    result_.bound_ms = Bound();
    result_.seconds = stopwatch_.Seconds();
    if (result_.status == SearchStatus::kFeasible &&
        IsSettled(result_.bound_ms)) {
      result_.status = SearchStatus::kOptimal;
    } else if (result_.bound_ms == kInf) {
      result_.status = SearchStatus::kInfeasible;
    } else if (result_.stopped_by == StoppedBy::kNothing) {
      result_.stopped_by =
          is_memory_full_ ? StoppedBy::kMemory : StoppedBy::kUnproven;
      return;
    }
    if (result_.status == SearchStatus::kOptimal ||
        result_.status == SearchStatus::kInfeasible) {
      result_.stopped_by = StoppedBy::kNothing;
    }
  }

  bool IsStopped() {
    if (limits_.interrupted && limits_.interrupted->load()) {
      result_.stopped_by = StoppedBy::kInterrupt;
    } else if (stopwatch_.Seconds() > limits_.time_limit_s) {
      result_.stopped_by = StoppedBy::kTime;
    } else if (result_.nodes > limits_.node_limit) {
      result_.stopped_by = StoppedBy::kNodes;
    } else if (BestMs() < kInf && limits_.gap > 0 &&
               BestMs() - Bound() <= limits_.gap * BestMs()) {
      result_.stopped_by = StoppedBy::kGap;
    }
    return result_.stopped_by != StoppedBy::kNothing;
  }

  ModuleSolution Solve(JointProblem& joint, double gap) {
    joint.relaxed.budget_bytes = static_cast<double>(budget_bytes_);
    SearchLimits left = limits_;
    left.time_limit_s =
        std::max(0.0, limits_.time_limit_s - stopwatch_.Seconds());
    left.node_limit = std::max<int64_t>(0, limits_.node_limit - result_.nodes);
    left.gap = gap;
    left.cut_off = BestMs();
    if (limits_.on_progress) {
      left.on_progress = [&](const solver::SearchProgress& progress) {
        limits_.on_progress({.best = BestMs(),
                             .bound = Bound(),
                             .nodes = result_.nodes + progress.nodes,
                             .seconds = stopwatch_.Seconds()});
      };
    }
    ModuleSolution solution = SolveJointByLabels(joint, left);
    result_.nodes += solution.nodes;
    is_memory_full_ |= solution.stopped_by == StoppedBy::kMemory;
    result_.rows = std::max(result_.rows, solution.rows);
    result_.columns = std::max(result_.columns, solution.columns);
    return solution;
  }

  // What PyTorch refuses is no plan.
  std::optional<Simulation> Try(
      const std::vector<CheckpointedModule>& modules) {
    Simulation use;
    try {
      use = UseOf(problem_, modules);
    } catch (const InputError&) {
      return std::nullopt;
    }
    if (use.peak_bytes <= budget_bytes_ && use.recompute_ms < BestMs()) {
      result_.status = SearchStatus::kFeasible;
      result_.modules = modules;
      result_.use = use;
    }
    return use;
  }

  std::optional<Tried> TryPlan(TraceRelaxation relaxation,
                               std::vector<ChosenUnit> units) {
    std::vector<CheckpointedModule> modules =
        CheckpointedModules(problem_, relaxation, units);
    std::optional<Simulation> use = Try(modules);
    if (!use) return std::nullopt;
    return Tried{.relaxation = std::move(relaxation),
                 .units = std::move(units),
                 .modules = std::move(modules),
                 .use = std::move(*use)};
  }

  // Improves the bound of a part, and splits it where that does not settle it.
  void Branch(Part part) {
    std::optional<Decision> decision;
    double best_bound_ms = -kInf;
    double weight = 1;  // of what is to be tried
    for (int round = 0; round < (decision ? kRounds : kMostRounds); ++round) {
      const Witnesses witnesses = Blend(part.witnesses, part.next, weight);
      TraceRelaxation relaxation = Relax(problem_, witnesses, part.decisions);
      const ModuleSolution relaxed = Solve(relaxation.joint, 0);
      if (relaxed.status == SearchStatus::kInfeasible) return;
      if (relaxed.status == SearchStatus::kNoSolution) {
        // Nothing better, or a limit.
        Close(std::max(part.bound_ms, relaxed.bound_ms));
        return;
      }
      std::optional<Tried> found =
          TryPlan(std::move(relaxation), relaxed.units);
      if (!found) break;
      Tried& tried = *found;
      weight /= 2;
      if (relaxed.bound_ms > best_bound_ms || !decision) {
        best_bound_ms = relaxed.bound_ms;
        Witnesses next = witnesses;
        decision = FirstInconsistency(part, tried);
        if (!decision) decision = Miscount(part, tried, witnesses, next);
        if (!decision) decision = MissedInRecomputation(part, tried);
        // Where all that is missing is decided, it has to be counted.
        if (relaxed.bound_ms >= part.bound_ms || !decision) {
          part.bound_ms = std::max(part.bound_ms, relaxed.bound_ms);
          current_bound_ms_ = part.bound_ms;
          part.witnesses = witnesses;
          part.next = std::move(next);
          weight = decision ? .5 : 1;
        }
      }
      if (IsSettled(part.bound_ms) || IsStopped()) {
        Close(part.bound_ms);
        return;
      }
      if (tried.use.peak_bytes > budget_bytes_) Repair(std::move(tried));
      if (part.next == part.witnesses || relaxed.nodes > kManyLabels) break;
    }
    if (!decision) {
      Close(part.bound_ms);
      return;
    }
    for (const bool is_so : {true, false}) {
      Part half = part;
      decision->is_so = is_so;
      half.decisions.push_back(*decision);
      half.next = half.witnesses;
      if (decision->kind == Decision::Kind::kLife && is_so) {
        half.next[decision->of] = {
            {.kind = Witness::Kind::kDecided, .index = decision->at}};
      }
      open_.push_back(std::move(half));
    }
  }

  // Calls of one module of which only some are units, or which differ.
  std::optional<Decision> FirstInconsistency(const Part& part,
                                             const Tried& tried) const {
    if (!problem_.has_repeated_calls) return std::nullopt;
    std::map<int, std::vector<const ChosenUnit*>> units_of;  // a module
    for (const ChosenUnit& unit : tried.units) {
      const int c = problem_.candidate_at[unit.node];
      units_of[problem_.candidates[c].module_node].push_back(&unit);
    }
    for (const auto& [module, units] : units_of) {
      const auto calls = std::ranges::count(
          problem_.candidates, module, &TraceProblem::Candidate::module_node);
      const Decision is_unit = {.kind = Decision::Kind::kUnit, .of = module};
      if (calls > std::ssize(units) && !part.IsDecided(is_unit)) {
        return is_unit;
      }
      const std::vector<char> first =
          RecomputedGroups(tried.relaxation, *units.front());
      for (const ChosenUnit* unit : units) {
        const std::vector<char> groups =
            RecomputedGroups(tried.relaxation, *unit);
        for (size_t g = 0; g < first.size(); ++g) {
          const Decision group = {.kind = Decision::Kind::kGroup,
                                  .of = module,
                                  .at = static_cast<int32_t>(g)};
          if (first[g] != groups[g] && !part.IsDecided(group)) return group;
        }
      }
    }
    return std::nullopt;
  }

  // The storage of which most is missing where the plan breaks the budget. The
  // next witnesses count all that is missing.
  std::optional<Decision> Miscount(const Part& part, const Tried& tried,
                                   const Witnesses& witnesses,
                                   Witnesses& next) const {
    std::optional<Decision> decision;
    int64_t most = 0;
    for (const int32_t time : ViolatedTimes(tried.use)) {
      for (Miscounted& m :
           FindMiscounted(problem_, tried.modules, time, witnesses)) {
        const std::optional<int32_t> until = part.LiveUntil(m.storage);
        if (until && *until >= time) {
          next[m.storage] = {
              {.kind = Witness::Kind::kDecided, .index = *until}};
        } else {
          next[m.storage] = std::move(m.witnesses);
        }
        const Decision is_live = {
            .kind = Decision::Kind::kLife, .of = m.storage, .at = time};
        if (m.is_copy || part.IsDecided(is_live)) continue;
        if (decision && decision->of == m.storage) {
          decision->at = std::max(decision->at, time);
        }
        if (m.bytes <= most) continue;
        most = m.bytes;
        decision = is_live;
      }
    }
    return decision;
  }

  // A group of a unit that breaks the budget while it runs again: one that runs
  // there, or else the one of which most is saved for later.
  std::optional<Decision> MissedInRecomputation(const Part& part,
                                                const Tried& tried) const {
    int64_t worst = budget_bytes_;
    std::optional<Decision> decision;
    for (size_t k = 0; k < tried.use.steps.size(); ++k) {
      const Simulation::Step& step = tried.use.steps[k];
      if (step.redone < 0 || tried.use.live_bytes[k] <= worst) continue;
      const graph::TraceCall& call = problem_.trace->calls[step.redone];
      if (step.op < call.start) continue;  // a cast from before the call
      const TraceProblem::Candidate& candidate =
          problem_.candidates[problem_.candidate_of[step.redone]];
      if (candidate.is_whole) continue;
      const graph::OperatorGroups& groups =
          problem_.groups[candidate.module_node];
      const auto is_open = [&](const Decision& d) {
        return groups.groups[d.at].rule == graph::GroupRule::kFree &&
               !part.IsDecided(d);
      };
      const auto group_of = [&](int32_t op) {
        return Decision{.kind = Decision::Kind::kGroup,
                        .of = candidate.module_node,
                        .at = groups.group_of[op - call.start]};
      };
      std::optional<Decision> next = group_of(step.op);
      if (!is_open(*next))
        next = MostSaved(tried, call, step.op, is_open, group_of);
      if (!next) continue;
      worst = tried.use.live_bytes[k];
      decision = next;
    }
    return decision;
  }

  template <typename IsOpen, typename GroupOf>
  std::optional<Decision> MostSaved(const Tried& tried,
                                    const graph::TraceCall& call, int32_t op,
                                    const IsOpen& is_open,
                                    const GroupOf& group_of) const {
    const auto unit = std::ranges::find(tried.modules, call.module,
                                        &CheckpointedModule::module);
    std::map<int32_t, int64_t> saved;  // a group
    std::optional<Decision> most;
    for (int32_t later = op + 1; later < call.end; ++later) {
      if (!unit->save[later - call.start]) continue;
      const Decision group = group_of(later);
      if (!is_open(group)) continue;
      for (const int32_t s : problem_.trace->operators[later].creates) {
        saved[group.at] += problem_.trace->storages[s].bytes;
      }
      if (!most || saved[group.at] > saved[most->at]) most = group;
    }
    return most;
  }

  // Of each record that the plan breaks the time that breaks it most.
  std::vector<int32_t> ViolatedTimes(const Simulation& use) const {
    std::map<int, std::pair<int64_t, int32_t>> worst;  // a record
    const std::vector<int32_t> times = TimesOf(use);
    for (size_t k = 0; k < use.steps.size(); ++k) {
      if (use.steps[k].redone >= 0 || use.live_bytes[k] <= budget_bytes_) {
        continue;
      }
      auto& [bytes, at] = worst[problem_.record_of[times[k]]];
      if (use.live_bytes[k] <= bytes) continue;
      bytes = use.live_bytes[k];
      at = times[k];
    }
    std::vector<std::pair<int64_t, int32_t>> sorted;
    for (const auto& [record, of] : worst) sorted.push_back(of);
    // The worst last, so that it has the last word on witnesses.
    std::ranges::sort(sorted);
    std::vector<int32_t> result;
    for (const auto& [bytes, at] : sorted) result.push_back(at);
    return result;
  }

  // Looks for a plan within the budget near one that is not: records that the
  // relaxation puts too low are raised to what the simulation shows, until the
  // plan fits.
  void Repair(Tried tried) {
    const int rounds = result_.status == SearchStatus::kFeasible
                           ? kRepairRounds
                           : kFirstRepairRounds;
    if (++repairs_ > kMostRepairs) return;
    for (int round = 0; round < rounds && !IsStopped(); ++round) {
      RaiseRecords(tried);
      const ModuleSolution next = Solve(
          tried.relaxation.joint,
          std::max(limits_.gap, BestMs() < kInf ? kGapOfRepairs : kGapOfFirst));
      if (next.units.empty()) return;
      std::optional<Tried> found =
          TryPlan(std::move(tried.relaxation), next.units);
      if (!found || found->use.peak_bytes <= budget_bytes_) return;
      tried = std::move(*found);
    }
  }

  void RaiseRecords(Tried& tried) const {
    std::vector<ModuleProblem::Node>& nodes =
        tried.relaxation.joint.relaxed.nodes;
    const auto is_around = [&](const ChosenUnit& unit, int node) {
      return unit.node <= node &&
             node < unit.node + nodes[unit.node].subtree_size;
    };
    const auto released_before = [&](int node) {
      double bytes = 0;
      for (const ChosenUnit& unit : tried.units) {
        if (!is_around(unit, node) &&
            nodes[unit.node].time < nodes[node].time) {
          bytes += unit.net_bytes;
        }
      }
      return bytes;
    };
    const std::vector<int32_t> times = TimesOf(tried.use);
    for (size_t k = 0; k < times.size(); ++k) {
      if (tried.use.live_bytes[k] <= budget_bytes_) continue;
      const Simulation::Step& step = tried.use.steps[k];
      const int record =
          step.redone < 0
              ? problem_.record_of[times[k]]
              : problem_.candidates[problem_.candidate_of[step.redone]].node;
      const auto unit = std::ranges::find_if(
          tried.units,
          [&](const ChosenUnit& u) { return is_around(u, record); });
      const auto live = static_cast<double>(tried.use.live_bytes[k]);
      if (unit == tried.units.end()) {
        double& bytes = nodes[record].base_bytes;
        bytes = std::max(bytes, live + released_before(record));
      } else {
        std::optional<double>& bytes = nodes[unit->node].unit_base_bytes;
        bytes = std::max(*bytes, live + released_before(unit->node));
      }
    }
  }

  const TraceProblem& problem_;
  const int64_t budget_bytes_;
  const SearchLimits& limits_;
  const solver::Stopwatch stopwatch_;
  std::vector<Part> open_;
  double closed_bound_ms_ = kInf;  // of parts that are not open any more
  double current_bound_ms_ = 0;    // of the part at hand
  int repairs_ = 0;
  bool is_memory_full_ = false;  // in a relaxation's search
  TraceSolution result_;
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
  const MinimumBudget relaxed =
      FindMinimumBudget(relaxation.joint.relaxed, limits);
  int64_t most = units_of(UseOf(problem, {}).peak_bytes);
  int64_t least = relaxed.proven ? std::min(most, units_of(relaxed.bytes)) : 1;
  SearchLimits any = limits;
  any.gap = 1;
  any.on_progress = nullptr;
  // The relaxation's bound is often met, or nearly.
  bool is_proven = true;
  for (int64_t step = 0; least < most;) {
    any.time_limit_s = std::max(1.0, limits.time_limit_s - stopwatch.Seconds());
    const int64_t middle = std::min(least + step, least + (most - least) / 2);
    const TraceSolution found =
        SolveTraceProblem(problem, middle * kAllocationUnit, any);
    if (found.modules.empty() && found.status != SearchStatus::kOptimal) {
      is_proven &= found.status == SearchStatus::kInfeasible;
      least = middle + 1;
      step = 4 * step + 1;
      const bool is_over = found.stopped_by == StoppedBy::kTime ||
                           found.stopped_by == StoppedBy::kInterrupt;
      if (is_over) break;
    } else {
      most = units_of(found.use.peak_bytes);
    }
  }
  return {.bytes = most * kAllocationUnit,
          .proven = is_proven && least >= most};
}

}  // namespace acplan::problems
