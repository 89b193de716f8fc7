// Best bound first.
//
// Idea. A strategy with its best plan is no faster than without recomputation, and no
// faster than the relaxation of its stages' knapsacks (plan_search.h). The strategies that
// these bounds do not rule out are candidates. They are planned by ascending bound: the
// first plans are likely the fastest, and once the least remaining bound is above the
// slowest plan that would still count, all the others are ruled out.
//
// A plan is first made with few labels for each stage, which is quick and often exact; if
// it is not exact, its bound still rules many out. Candidates that are still open are
// planned once more, by ascending bound, with many labels.
//
// Invariant. Each candidate is planned to its optimum, or a bound of it is above the
// slowest of the best `count`, or it is counted as unplanned or improvable. The slowest of
// the best only ever gets faster, so candidates that were ruled out stay so, whatever the
// order of the threads: the answer is the least by seconds, bytes and place, which does not
// depend on that order.
#include "costmodel/training/search/planned_search.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/search/plan_search.h"
#include "costmodel/training/search/thread_seconds.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {
namespace {

// Bounds are summed in another order than times.
constexpr double kRounding = 1 - 1e-9;

// The values that strategies of a unit share.
struct PlannedUnit {
  UnitTimes times = {};
  PlannedLayers layers = {};
};
using PlannedUnits = std::map<UnitKey, std::unique_ptr<const PlannedUnit>>;

struct Candidate {
  TrainingStrategy strategy = {};
  const std::vector<StageKind>* kinds = nullptr;
  const PlannedUnit* unit = nullptr;
  size_t place = 0;  // its index among all candidates
  double bound = 0;
  std::optional<PlannedStrategy> plan = {};  // the best known plan
  StageChoices choices = {};
};

// Returns the structures of the layers of these units, each once. They do not depend on the
// microbatch.
std::vector<KnownStructure> StructuresOf(
    TrainingJob job, std::span<const TrainingStrategy> units) {
  std::vector<KnownStructure> structures;
  for (const TrainingStrategy& unit : units) {
    if (unit.microbatch != units.front().microbatch) continue;
    job.strategy = unit;
    for (const bool is_moe : {false, true}) {
      if (is_moe ? !job.shape.IsMoe()
                 : job.shape.IsMoe() && job.shape.dense_layers == 0) {
        continue;
      }
      LayerGraph graph = GraphOfLayer(job, is_moe);
      const auto same =
          std::ranges::find_if(structures, [&](const KnownStructure& k) {
            return IsSameStructure(k.graph, graph);
          });
      if (same != structures.end()) continue;
      std::vector<PolicySets> sets = SetsOfPolicies(graph);
      structures.push_back({std::move(graph), std::move(sets)});
    }
  }
  return structures;
}

struct FoundCandidates {
  StrategySearch counts = {};
  PlannedUnits units = {};
  std::vector<Candidate> candidates = {};
};

// Finds the candidates of a unit.
class CandidateFinder {
 public:
  CandidateFinder(TrainingJob job, const PlannedSearchQuestion& question,
                  const std::vector<KnownStructure>& structures)
      : job_(std::move(job)),
        question_(question),
        structures_(structures),
        has_plain_(std::ranges::find(question.space.recomputation,
                                     Recomputation::kNone) !=
                   question.space.recomputation.end()) {}

  FoundCandidates Run();

 private:
  void Try(const std::vector<StageKind>& kinds);
  const PlannedUnit& Unit();

  TrainingJob job_;
  const PlannedSearchQuestion& question_;
  const std::vector<KnownStructure>& structures_;
  bool has_plain_;
  LayerMemories memories_ = {};
  KnownBudgets budgets_ = {};
  KnownUnitTimes times_ = {};
  FoundCandidates result_ = {};
};

const PlannedUnit& CandidateFinder::Unit() {
  std::unique_ptr<const PlannedUnit>& unit =
      result_.units[UnitKeyOf(job_.strategy)];
  if (!unit) {
    unit = std::make_unique<const PlannedUnit>(
        PlannedUnit{times_.TimesOf(job_), LayersToPlan(job_, structures_)});
  }
  return *unit;
}

void CandidateFinder::Try(const std::vector<StageKind>& kinds) {
  ++result_.counts.strategies;
  ++result_.counts.evaluated;
  // Policies take longest to compute, so the tests that need none come first.
  const double least =
      CombineStepTime(job_, times_.TimesOf(job_), kinds).Total();
  if (least > question_.cutoff) return;
  // It needs no recomputation: the strategy is in the list already.
  const double budget = budgets_.Find(question_.limit, job_);
  if (has_plain_ && MostBytesOf(job_, memories_, kinds, budget) <= budget) {
    return;
  }
  const PlannedUnit& unit = Unit();
  const PlanProblem problem{job_, unit.times, unit.layers, kinds, budget};
  if (!DoesLeastFit(problem)) return;
  ++result_.counts.fitting;
  if (kRounding * QuickPlanBound(problem) > question_.cutoff) return;
  const double bound = kRounding * PlanBound(problem);
  if (bound > question_.cutoff) return;
  result_.candidates.push_back({.strategy = job_.strategy,
                                .kinds = &kinds,
                                .unit = &unit,
                                .bound = bound});
}

FoundCandidates CandidateFinder::Run() {
  memories_ = MemoriesOfLayers(job_);
  TrainingStrategy& s = job_.strategy;
  for (const PipelineLayout& layout : question_.layouts) {
    if (question_.clock.HasEnded()) {
      result_.counts.LeaveUntried();
      break;
    }
    if (!IsOfUnit(s, layout, question_.job, question_.space)) continue;
    s = WithLayout(std::move(s), layout);
    for (const Sharding sharding :
         ShardingsOf(s, question_.job, question_.space)) {
      s = WithSharding(std::move(s), sharding);
      Try(layout.kinds);
    }
  }
  return std::move(result_);
}

// The seconds of the best plans, and the cutoff for slower ones.
class BestTimes {
 public:
  BestTimes(size_t count, double cutoff) : count_(count), cutoff_(cutoff) {}

  double Cutoff() const {
    const std::lock_guard lock(mutex_);
    return cutoff_;
  }
  // Sets the seconds of the strategy at a place, and forgets its earlier ones.
  void Add(size_t place, double seconds) {
    const std::lock_guard lock(mutex_);
    std::erase_if(best_,
                  [&](const auto& entry) { return entry.second == place; });
    best_.emplace(seconds, place);
    if (best_.size() > count_) best_.erase(std::prev(best_.end()));
    if (count_ > 0 && best_.size() == count_) {
      cutoff_ = std::min(cutoff_, best_.rbegin()->first);
    }
  }

 private:
  size_t count_;
  double cutoff_;
  mutable std::mutex mutex_ = {};
  std::set<std::pair<double, size_t>> best_ = {};
};

class Planner {
 public:
  explicit Planner(const PlannedSearchQuestion& question)
      : question_(question), times_(question.count, question.cutoff) {}

  StrategySearch Run(std::span<const TrainingStrategy> units);

 private:
  void FindCandidates(std::span<const TrainingStrategy> units);
  void PlanAll(size_t most_labels);
  void Plan(Candidate& candidate, size_t most_labels);
  bool IsOpen(const Candidate& candidate, double cutoff) const {
    return candidate.bound <= cutoff &&
           (!candidate.plan || candidate.plan->bound < candidate.plan->seconds);
  }

  const PlannedSearchQuestion& question_;
  BestTimes times_;
  std::vector<PlannedUnits> units_ = {};
  std::vector<Candidate> candidates_ = {};
  StrategySearch result_ = {};
};

void Planner::FindCandidates(std::span<const TrainingStrategy> units) {
  const std::vector<KnownStructure> structures =
      StructuresOf(question_.job, units);
  std::vector<FoundCandidates> found_candidates(units.size());
  oneapi::tbb::parallel_for(size_t{0}, units.size(), [&](size_t i) {
    const double begin = ThreadSeconds();
    TrainingJob of_unit = question_.job;
    of_unit.strategy = units[i];
    found_candidates[i] =
        CandidateFinder(std::move(of_unit), question_, structures).Run();
    if (found_candidates[i].candidates.empty())
      found_candidates[i].units.clear();
    found_candidates[i].counts.core_seconds = ThreadSeconds() - begin;
  });
  for (FoundCandidates& of_unit : found_candidates) {
    result_.strategies += of_unit.counts.strategies;
    result_.evaluated += of_unit.counts.evaluated;
    result_.fitting += of_unit.counts.fitting;
    if (!of_unit.counts.is_complete) result_.LeaveUntried();
    result_.core_seconds += of_unit.counts.core_seconds;
    units_.push_back(std::move(of_unit.units));
    for (Candidate& candidate : of_unit.candidates) {
      candidate.place = candidates_.size();
      candidates_.push_back(std::move(candidate));
    }
  }
}

void Planner::Plan(Candidate& candidate, size_t most_labels) {
  TrainingJob job = question_.job;
  job.strategy = candidate.strategy;
  PlanOutcome outcome = PlanOfStrategy(
      {job, candidate.unit->times, candidate.unit->layers, *candidate.kinds,
       PyTorchBytes(question_.limit, job)},
      {.most_labels = most_labels,
       .is_stopped = [this] { return question_.clock.HasEnded(); }},
      times_.Cutoff() / kRounding, std::move(candidate.choices));
  candidate.choices = std::move(outcome.choices);
  candidate.bound = std::max(candidate.bound, kRounding * outcome.bound);
  if (!outcome.plan) return;
  if (candidate.plan && candidate.plan->seconds < outcome.plan->seconds) return;
  candidate.plan = std::move(outcome.plan);
  times_.Add(candidate.place, candidate.plan->seconds);
}

// Plans the candidates that may be improved, by ascending bound.
void Planner::PlanAll(size_t most_labels) {
  std::vector<Candidate*> open;
  for (Candidate& candidate : candidates_) {
    if (IsOpen(candidate, times_.Cutoff())) open.push_back(&candidate);
  }
  std::ranges::sort(open, {}, [](const Candidate* candidate) {
    return std::pair(candidate->bound, candidate->place);
  });
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> plan_count = 0;
  const auto workers =
      static_cast<size_t>(oneapi::tbb::this_task_arena::max_concurrency());
  std::vector<double> seconds(workers, 0);
  oneapi::tbb::parallel_for(size_t{0}, workers, [&](size_t worker) {
    const double begin = ThreadSeconds();
    while (!question_.clock.HasEnded()) {
      const size_t i = next++;
      // The bounds of the others are not lower.
      if (i >= open.size() || open[i]->bound > times_.Cutoff()) break;
      ++plan_count;
      Plan(*open[i], most_labels);
    }
    seconds[worker] = ThreadSeconds() - begin;
  });
  result_.plan_count += plan_count;
  for (const double of_worker : seconds) result_.core_seconds += of_worker;
}

StrategySearch Planner::Run(std::span<const TrainingStrategy> units) {
  FindCandidates(units);
  PlanAll(kLabelsInSearch);
  PlanAll(kLabelsOfPlan);
  const double cutoff = times_.Cutoff();
  std::vector<const Candidate*> fastest;
  for (const Candidate& candidate : candidates_) {
    if (IsOpen(candidate, cutoff)) {
      ++(candidate.plan ? result_.improvable : result_.unplanned);
      result_.open_bound = std::min(result_.open_bound, candidate.bound);
    }
    if (candidate.plan && candidate.plan->seconds <= cutoff) {
      fastest.push_back(&candidate);
    }
  }
  result_.is_proven &= result_.improvable + result_.unplanned == 0;
  std::ranges::sort(fastest, {}, [](const Candidate* candidate) {
    return std::tuple(candidate->plan->seconds, candidate->plan->bytes,
                      candidate->place);
  });
  if (fastest.size() > question_.count) fastest.resize(question_.count);
  for (const Candidate* candidate : fastest) {
    result_.best.push_back({candidate->strategy, candidate->plan->seconds,
                            candidate->plan->seconds, candidate->plan->bytes,
                            candidate->plan->bound, candidate->plan->choices});
  }
  return std::move(result_);
}

}  // namespace

StrategySearch SearchPlans(const PlannedSearchQuestion& question,
                           std::span<const TrainingStrategy> units) {
  if (units.empty()) return {};
  return Planner(question).Run(units);
}

}  // namespace acplan::costmodel
