// All strategies, one by one, with what they share computed once.
//
// What a layer takes and keeps depends on tensor, context and expert parallelism,
// the microbatch, recomputation and whether parameters are sharded (UnitTimes); the
// rest of a strategy, pipeline, chunks, data parallelism and ZeRO, is a sum over few
// kinds of stages. So an outer loop goes over the former and computes layers, and an
// inner one over the latter.
//
// With the first N layers of each stage recomputed, time rises and memory falls with
// N: each layer more adds its forward pass to a stage and leaves of it the input.
// (Time: microbatches x slowest + (sum - slowest) / chunks rises with every stage,
// as there is a microbatch at least.) The fastest that fits therefore is the least
// N that fits, found by bisection; no other N can be better.
//
// Memory of stages that are alike is most in the first, which has most microbatches
// in flight.
//
// Plans come last, when the others have said what is to be beaten. A strategy with its
// best plan is not faster than without recomputation, nor than the relaxation of its
// stages' knapsacks (plan_search.h); only what neither rules out is planned.
#include "costmodel/training/strategy_search.h"

#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "costmodel/training/plan_search.h"
#include "costmodel/training/step_memory.h"
#include "costmodel/training/step_time.h"
#include "costmodel/training/strategy_settings.h"

namespace acplan::costmodel {
namespace {

using Kinds = std::vector<StageKind>;
using StageTable = std::map<std::pair<int64_t, int64_t>, Kinds>;

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  return divisors;
}

bool IsBetter(const RankedStrategy& a, const RankedStrategy& b) {
  return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
}

// The best so many. Of equal rank the one that was found first stays first.
class BestStrategies {
 public:
  // What takes longer than `cutoff` seconds is not among them.
  explicit BestStrategies(
      size_t count, double cutoff = std::numeric_limits<double>::infinity())
      : count_(count), cutoff_(cutoff) {}

  bool MayTake(double seconds) const { return seconds <= Cutoff(); }
  double Cutoff() const {
    return best_.size() < count_ ? cutoff_
           : count_ > 0          ? std::min(cutoff_, best_.back().seconds)
                                 : -std::numeric_limits<double>::infinity();
  }
  void Add(const RankedStrategy& found) {
    if (!MayTake(found.seconds)) return;
    best_.insert(std::upper_bound(best_.begin(), best_.end(), found, IsBetter),
                 found);
    if (best_.size() > count_) best_.pop_back();
  }
  std::vector<RankedStrategy> Take() { return std::move(best_); }

 private:
  size_t count_;
  double cutoff_;
  std::vector<RankedStrategy> best_ = {};
};

// The rules of degrees that a unit shares.
bool IsUnitLegal(const ModelShape& shape, const TrainingStrategy& s) {
  if (s.gpus % (s.tensor * s.context) != 0) return false;
  if (shape.heads % s.tensor != 0 || shape.feedforward % s.tensor != 0) {
    return false;
  }
  if (!shape.IsLatent() && shape.kv_heads % s.tensor != 0 &&
      s.tensor % shape.kv_heads != 0) {
    return false;
  }
  if (s.context > 1 && (s.sequence % (2 * s.context) != 0 ||
                        s.attention == AttentionKernel::kUnfused)) {
    return false;
  }
  if (s.sequence % s.context != 0) return false;
  if (s.sequence_parallel && s.sequence / s.context % s.tensor != 0) {
    return false;
  }
  if (!shape.IsMoe()) return s.expert == 1;
  if (shape.experts % s.expert != 0) return false;
  return !s.overlaps_expert || s.expert > 1;
}

// The rules of the others, with the unit's.
bool IsLegal(const TrainingStrategy& s) {
  if (s.gpus % (s.tensor * s.context * s.pipeline) != 0) return false;
  if (s.gpus % (s.pipeline * s.expert) != 0) return false;
  if (s.global_batch % s.Data() != 0) return false;
  if (s.global_batch / s.Data() % s.microbatch != 0) return false;
  if (s.chunks > 1 && (s.pipeline == 1 || s.Microbatches() % s.pipeline != 0)) {
    return false;
  }
  if (s.zero >= 2 && s.Data() == 1) return false;
  return s.zero != 2 || s.pipeline == 1;
}

// What searches of units have in common.
struct SearchQuestion {
  const StrategySpace& space;
  const StageTable& stages;
  const std::vector<KnownStructure>& structures;
  double budget = 0;
  size_t count = 0;
  double cutoff = std::numeric_limits<double>::infinity();
  size_t most_labels = kLabelsInSearch;
  PlanningLimits limits = {};
  std::chrono::steady_clock::time_point start = {};  // of planning

  bool MayPlan() const {
    const std::chrono::duration<double> spent =
        std::chrono::steady_clock::now() - start;
    return spent.count() < limits.seconds &&
           !(limits.interrupted && limits.interrupted->load());
  }
  bool Tries(Recomputation recomputation) const {
    return std::ranges::find(space.recomputation, recomputation) !=
           space.recomputation.end();
  }
};

// What is found of one unit: searches of units run beside each other.
class UnitSearch {
 public:
  UnitSearch(TrainingJob job, const SearchQuestion& question)
      : job_(std::move(job)),
        question_(question),
        best_(question.count, question.cutoff) {}

  StrategySearch Run();

 private:
  void TryStages(const Kinds& kinds);
  void TryLayers(const Kinds& kinds);
  bool TryOne(const Kinds& kinds);
  void TryPlan(const Kinds& kinds);
  double MostBytes(const Kinds& kinds) const;
  std::pair<bool, int64_t> UnitKey() const;
  const UnitTimes& Units();
  const PlannedLayers& Planned();

  TrainingJob job_;
  const SearchQuestion& question_;
  BestStrategies best_;
  LayerMemories layers_ = {};
  // By whether parameters are sharded, and in few bits by microbatches.
  std::map<std::pair<bool, int64_t>, UnitTimes> units_ = {};
  std::map<std::pair<bool, int64_t>, PlannedLayers> planned_ = {};
  StrategySearch found_ = {};
};

std::pair<bool, int64_t> UnitSearch::UnitKey() const {
  const TrainingStrategy& s = job_.strategy;
  return {s.fsdp > 1, s.IsLowPrecision() ? s.Microbatches() : 0};
}

const UnitTimes& UnitSearch::Units() {
  const auto known = units_.find(UnitKey());
  if (known != units_.end()) return known->second;
  return units_.emplace(UnitKey(), TimesOfUnits(job_)).first->second;
}

const PlannedLayers& UnitSearch::Planned() {
  const auto known = planned_.find(UnitKey());
  if (known != planned_.end()) return known->second;
  return planned_.emplace(UnitKey(), LayersToPlan(job_, question_.structures))
      .first->second;
}

double UnitSearch::MostBytes(const Kinds& kinds) const {
  double most = 0;
  for (const StageKind& kind : kinds) {
    most = std::max(
        most, MemoryOfStage(job_, layers_, kind.content, kind.first).Total());
  }
  return most;
}

bool UnitSearch::TryOne(const Kinds& kinds) {
  ++found_.evaluated;
  const double bytes = MostBytes(kinds);
  if (bytes > question_.budget) return false;
  ++found_.fitting;
  const double seconds = CombineStepTime(job_, Units(), kinds).Total();
  if (best_.MayTake(seconds)) best_.Add({job_.strategy, seconds, bytes});
  return true;
}

// The least number of layers that fits; all of them is written as 0.
void UnitSearch::TryLayers(const Kinds& kinds) {
  int64_t most = 0;
  for (const StageKind& kind : kinds) {
    most = std::max(most, kind.content.Layers());
  }
  int64_t& layers = job_.strategy.full_layers;
  found_.strategies += most;
  int64_t low = 1;
  int64_t high = most;
  layers = 0;
  if (most > 0 && MostBytes(kinds) <= question_.budget) {
    while (low < high) {
      layers = (low + high) / 2;
      ++found_.evaluated;
      if (MostBytes(kinds) <= question_.budget) {
        high = layers;
      } else {
        low = layers + 1;
      }
    }
    layers = low < most ? low : 0;
    TryOne(kinds);
  } else {
    ++found_.evaluated;
  }
  layers = 0;
}

void UnitSearch::TryPlan(const Kinds& kinds) {
  ++found_.strategies;
  ++found_.evaluated;
  const PlanProblem problem{job_, Units(), Planned(), kinds, question_.budget};
  if (!DoesLeastFit(problem)) return;
  ++found_.fitting;
  const double least = CombineStepTime(job_, Units(), kinds).Total();
  if (!best_.MayTake(least)) return;
  // Nothing is recomputed: the strategy is there already.
  if (question_.Tries(Recomputation::kNone) &&
      MostBytes(kinds) <= question_.budget) {
    return;
  }
  // Bounds are summed in another order than times.
  constexpr double kRounding = 1 - 1e-9;
  if (!best_.MayTake(kRounding * QuickPlanBound(problem))) return;
  if (!best_.MayTake(kRounding * PlanBound(problem))) return;
  if (!question_.MayPlan()) {
    ++found_.unplanned;
    found_.is_proven = false;
    return;
  }
  ++found_.planned;
  const std::optional<PlannedStrategy> plan =
      PlanOfStrategy(problem, question_.most_labels);
  if (!plan) return;
  found_.is_proven &=
      plan->bound == plan->seconds || !best_.MayTake(plan->bound);
  if (best_.MayTake(plan->seconds)) {
    best_.Add({job_.strategy, plan->seconds, plan->bytes});
  }
}

void UnitSearch::TryStages(const Kinds& kinds) {
  TrainingStrategy& s = job_.strategy;
  for (const int64_t zero : question_.space.zero) {
    s.zero = zero;
    s.fsdp = zero >= 2 ? s.Data() : 0;
    if (!IsLegal(s)) continue;
    if (s.recomputation == Recomputation::kFull) {
      TryLayers(kinds);
      continue;
    }
    if (s.recomputation == Recomputation::kPlan) {
      TryPlan(kinds);
      continue;
    }
    ++found_.strategies;
    TryOne(kinds);
  }
}

StrategySearch UnitSearch::Run() {
  layers_ = MemoriesOfLayers(job_);
  TrainingStrategy& s = job_.strategy;
  for (const auto& [degrees, kinds] : question_.stages) {
    s.pipeline = degrees.first;
    s.chunks = degrees.second;
    s.schedule = s.chunks > 1 ? PipelineSchedule::kInterleaved
                              : PipelineSchedule::kOneForwardOneBackward;
    s.zero = 0;
    if (IsLegal(s)) TryStages(kinds);
  }
  found_.best = best_.Take();
  return std::move(found_);
}

// The stages of each pipeline and number of chunks that may be tried.
StageTable TableOfStages(TrainingJob job, const StrategySpace& space) {
  const int64_t layers = job.shape.layers + job.shape.mtp_layers;
  StageTable table;
  for (const int64_t pipeline : space.pipeline) {
    for (const int64_t chunks : space.chunks) {
      const int64_t parts = pipeline * chunks;
      if (job.strategy.gpus % pipeline != 0 || parts > layers + 2) continue;
      if (chunks > 1 && pipeline == 1) continue;
      if (layers % parts != 0 && (layers + 2) % parts != 0) continue;
      job.strategy.pipeline = pipeline;
      job.strategy.chunks = chunks;
      table[{pipeline, chunks}] = KindsOfStages(DivideLayers(job));
    }
  }
  return table;
}

// A strategy without pipeline for each combination that units depend on.
std::vector<TrainingStrategy> UnitsOf(const TrainingJob& job,
                                      const StrategySpace& space) {
  std::vector<TrainingStrategy> units;
  TrainingStrategy s = job.strategy;
  s.pipeline = s.chunks = 1;
  s.full_layers = 0;
  for (const int64_t tensor : space.tensor) {
    for (const int64_t context : space.context) {
      for (const int64_t expert : space.expert) {
        s.tensor = tensor;
        s.sequence_parallel = tensor > 1;
        s.overlaps_tensor = job.strategy.overlaps_tensor && tensor > 1;
        s.context = context;
        s.expert = expert;
        s.overlaps_expert = job.strategy.overlaps_expert && expert > 1;
        if (!IsUnitLegal(job.shape, s)) continue;
        for (const int64_t microbatch : space.microbatch) {
          for (const Recomputation recomputation : space.recomputation) {
            s.microbatch = microbatch;
            s.recomputation = recomputation;
            s.parts.clear();
            if (recomputation == Recomputation::kSelective) {
              s.parts = job.strategy.parts;
              if (s.parts.empty()) s.parts = {LayerPart::kCoreAttention};
            }
            units.push_back(s);
          }
        }
      }
    }
  }
  return units;
}

// That this thread has computed.
double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<StrategySearch> SearchEachUnit(
    const TrainingJob& job, const SearchQuestion& question,
    std::span<const TrainingStrategy> units) {
  std::vector<StrategySearch> parts(units.size());
  oneapi::tbb::parallel_for(size_t{0}, units.size(), [&](size_t i) {
    const double begin = ThreadSeconds();
    TrainingJob of_unit = job;
    of_unit.strategy = units[i];
    parts[i] = UnitSearch(std::move(of_unit), question).Run();
    parts[i].core_seconds = ThreadSeconds() - begin;
  });
  return parts;
}

// Of the layers of these units, each structure once. It does not depend on the
// microbatch.
std::vector<KnownStructure> StructuresOf(
    TrainingJob job, std::span<const TrainingStrategy> units) {
  std::vector<KnownStructure> known;
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
          std::ranges::find_if(known, [&](const KnownStructure& k) {
            return IsSameStructure(k.graph, graph);
          });
      if (same != known.end()) continue;
      std::vector<PolicySets> sets = SetsOfPolicies(graph);
      known.push_back({std::move(graph), std::move(sets)});
    }
  }
  return known;
}

// A defect of this search where one of its answers is no strategy.
void RequireLegal(const TrainingJob& job, const RankedStrategy& ranked) {
  TrainingJob checked = job;
  checked.strategy = ranked.strategy;
  try {
    CheckStrategy(job.shape, checked.strategy, "search");
    CheckStatedStrategy(checked);
  } catch (const std::exception& error) {
    throw std::logic_error(error.what());
  }
}

// All but the best.
void Add(const StrategySearch& part, StrategySearch& sum) {
  sum.strategies += part.strategies;
  sum.evaluated += part.evaluated;
  sum.fitting += part.fitting;
  sum.planned += part.planned;
  sum.unplanned += part.unplanned;
  sum.is_proven &= part.is_proven;
  sum.core_seconds += part.core_seconds;
}

StrategySearch Sum(const std::vector<StrategySearch>& parts) {
  StrategySearch sum;
  for (const StrategySearch& part : parts) {
    Add(part, sum);
    sum.best.insert(sum.best.end(), part.best.begin(), part.best.end());
  }
  return sum;
}

}  // namespace

StrategySpace WholeSpace(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  StrategySpace space;
  space.pipeline = space.context = DivisorsOf(s.gpus);
  for (const int64_t tensor : space.pipeline) {
    if (tensor <= job.cluster.domain) space.tensor.push_back(tensor);
  }
  for (int64_t chunks = 1; chunks <= 16; ++chunks) {
    space.chunks.push_back(chunks);
  }
  space.expert = job.shape.IsMoe() ? DivisorsOf(job.shape.experts)
                                   : std::vector<int64_t>{1};
  space.zero = {0, 1, 3};
  space.microbatch = {1, 2, 4, 8, 16};
  space.recomputation = {Recomputation::kNone, Recomputation::kSelective,
                         Recomputation::kOperators, Recomputation::kFull,
                         Recomputation::kPlan};
  return space;
}

StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space, double budget,
                                size_t count, const PlanningLimits& limits) {
  const StageTable stages = TableOfStages(job, space);
  std::vector<TrainingStrategy> units = UnitsOf(job, space);
  const auto plans =
      std::ranges::stable_partition(units, [](const TrainingStrategy& s) {
        return s.recomputation != Recomputation::kPlan;
      });
  const std::vector<KnownStructure> structures = StructuresOf(job, plans);
  SearchQuestion question{space, stages, structures, budget, count};
  StrategySearch all =
      Sum(SearchEachUnit(job, question, {units.begin(), plans.begin()}));
  BestStrategies best(count);
  for (const RankedStrategy& ranked : all.best) best.Add(ranked);
  question.cutoff = best.Cutoff();
  question.limits = limits;
  question.start = std::chrono::steady_clock::now();
  StrategySearch planned = Sum(SearchEachUnit(job, question, plans));
  if (!planned.is_proven && planned.unplanned == 0) {
    question.most_labels = kLabelsOfPlan;
    StrategySearch again = Sum(SearchEachUnit(job, question, plans));
    again.core_seconds += planned.core_seconds;
    if (again.unplanned == 0) planned = std::move(again);
  }
  for (const RankedStrategy& ranked : planned.best) best.Add(ranked);
  Add(planned, all);
  all.best = best.Take();
  for (const RankedStrategy& ranked : all.best) RequireLegal(job, ranked);
  return all;
}

}  // namespace acplan::costmodel
