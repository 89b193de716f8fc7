#include "problems/length_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "problems/ask.h"
#include "problems/check/plan_effect.h"
#include "problems/check/table_rules.h"
#include "problems/plan/plan_on_trace.h"

// An entry of a table is a plan for the lengths of an interval, its bucket. Operators are the
// same for all of them, and no storage has more bytes than for the longest. So the best
// plan for a bucket is that of one step: the longest one's, in which each operator takes
// the mean time of the bucket's batches. The engines solve it and prove a bound.
//
// For one budget of live bytes all buckets are solved, and a shortest path
// through them is the best table. Whether its run ends on the device depends on how the
// allocator mixes the lengths, so smaller budgets are tried as for one length
// (device_trials.h). Once a table fits, each entry gets the largest budget up to the
// device's memory with which the run still ends: the shorter lengths seldom decide.
//
// Bounds of the first budget, the device's memory, give a shortest path of their own:
// the bound of the table.

namespace acplan::problems {
namespace {

// Budgets beside the first.
constexpr int kMostBudgets = 9;
// Budgets between the table's and the device's that an entry tries.
constexpr int kMostRaises = 3;
constexpr double kNoTable = std::numeric_limits<double>::infinity();

// The lengths at [first, last] of the problem, under one plan.
struct Bucket {
  size_t first = 0;
  size_t last = 0;

  auto operator<=>(const Bucket&) const = default;
};

// The step that stands for a bucket.
class BucketProblem {
 public:
  BucketProblem(const LengthQuestion& question, const Bucket& bucket)
      : trace_(StepOf(*question.problem, bucket)),
        profile_(graph::Aggregate(trace_)),
        tree_(profile_),
        families_(problems::BuildFamilies({.profile = &profile_,
                                           .tree = &tree_,
                                           .options = question.options,
                                           .trace = &trace_,
                                           .segments = question.segments})) {}
  BucketProblem(const BucketProblem&) = delete;
  BucketProblem& operator=(const BucketProblem&) = delete;

  const Families& families() const { return families_; }

 private:
  static graph::Trace StepOf(const LengthProblem& problem,
                             const Bucket& bucket) {
    graph::Trace trace = problem.lengths[bucket.last].trace;
    for (graph::TraceOperator& op : trace.operators) op.runtime_ms = 0;
    double batches = 0;
    for (size_t k = bucket.first; k <= bucket.last; ++k) {
      batches += static_cast<double>(problem.counts[k]);
    }
    for (size_t k = bucket.first; k <= bucket.last; ++k) {
      const double share = static_cast<double>(problem.counts[k]) / batches;
      for (const graph::OperatorId op : trace.operators.ids()) {
        trace.operators[op].runtime_ms +=
            share * problem.lengths[k].trace.operators[op].runtime_ms;
      }
    }
    return trace;
  }

  graph::Trace trace_;
  graph::Profile profile_;
  graph::ModuleTree tree_;
  Families families_;
};

// The best table for budgets, one a bucket.
struct PlannedBucket {
  Bucket bucket;
  int64_t budget_bytes = 0;
};
using Buckets = std::vector<PlannedBucket>;

class LengthSearch {
 public:
  explicit LengthSearch(const LengthQuestion& question)
      : question_(question),
        problem_(*question.problem),
        search_{.memory_bytes = question.device.memory_bytes,
                .reserve_bytes = question.options.reserve_bytes},
        clock_(question.options.limits) {
    FindSwitches();
  }

  LengthAnswer Find() && {
    const Plan& longest = PlanOf({switches_.back(), switches_.back()},
                                 search_.memory_bytes);
    if (!longest.HasPlan()) return WithoutPlan(longest);
    std::optional<LengthTable> best;
    std::optional<int64_t> least_device;
    // Tables of fewer plans leave other holes, and may recompute less.
    for (most_plans_ = 1; most_plans_ <= MostPlans(); ++most_plans_) {
      search_.bound_ms =
          PathThrough(search_.memory_bytes, /*of_bounds=*/true).ms;
      if (search_.bound_ms == kNoTable) continue;
      bound_ms_ = search_.bound_ms;
      std::optional<LengthTable> table = BestTable();
      if (table && (!best || table->ms < best->ms)) best = std::move(table);
      const std::optional<int64_t> least = search_.LeastDevice();
      if (least) least_device = std::min(least_device.value_or(*least), *least);
      if (IsStopped()) break;
    }
    if (!best) return {.least_device_bytes = least_device};
    return {.table = TableOf(*best)};
  }

 private:
  // A table that fits.
  struct LengthTable {
    Buckets buckets;
    PlanDevice device;
    double ms = 0;
  };

  int64_t MostPlans() const {
    return std::min<int64_t>(question_.most_plans, std::ssize(switches_));
  }

  // Returns the best table of so many plans, if one fits.
  std::optional<LengthTable> BestTable() {
    search_.trials.clear();
    buckets_.clear();
    Try(search_.memory_bytes);
    for (int k = 0; k < kMostBudgets && !IsStopped(); ++k) {
      const std::optional<int64_t> next = search_.NextBudget();
      if (!next) break;
      Try(*next);
    }
    const auto [best, setting] = search_.BestOfAll();
    if (best == nullptr) return std::nullopt;
    LengthTable table{
        .buckets = buckets_[static_cast<size_t>(best - search_.trials.data())],
        .device = *best->uses[setting]};
    Raise(table, question_.device.settings[setting]);
    table.ms = MeanRecomputeMs(problem_, StepsOf(table.buckets));
    return table;
  }

  bool IsStopped() const {
    return clock_.Stop() != solver::StoppedBy::kNothing;
  }

  // Returns the shortest length that is trained.
  size_t FirstOf() const {
    size_t first = 0;
    while (problem_.counts[first] == 0) ++first;
    return first;
  }

  // Returns the next longer length that is trained.
  size_t Next(size_t place) const {
    ++place;
    while (place < problem_.counts.size() && problem_.counts[place] == 0) {
      ++place;
    }
    return place;
  }

  // Finds the lengths at which an entry may end, the longest that is trained among them.
  void FindSwitches() {
    const size_t longest = problem_.Longest();
    std::vector<size_t> trained;
    for (size_t k = FirstOf(); k <= longest; k = Next(k)) trained.push_back(k);
    if (!question_.switches.empty()) {
      for (const int64_t length : question_.switches) {
        const auto above = std::ranges::find_if(trained, [&](size_t k) {
          return problem_.lengths[k].length > length;
        });
        if (above != trained.begin()) switches_.push_back(*std::prev(above));
      }
    } else {
      AddQuantiles(trained);
    }
    for (const size_t place : trained) {
      if (place == longest) break;
      const bool goes_on = graph::AreAlike(problem_.lengths[place].trace,
                                           problem_.lengths[Next(place)].trace);
      if (!goes_on) breaks_.push_back(place);
    }
    // No plan is for steps of different operators.
    if (std::ssize(breaks_) >= question_.most_plans) {
      throw InputError(fmt::format(
          "plans: the steps up to length {} and from {} on run different "
          "operators: expected at least {} plans, found {}",
          problem_.lengths[breaks_.front()].length,
          problem_.lengths[Next(breaks_.front())].length, breaks_.size() + 1,
          question_.most_plans));
    }
    switches_.insert(switches_.end(), breaks_.begin(), breaks_.end());
    switches_.push_back(longest);
    std::ranges::sort(switches_);
    const auto repeated = std::ranges::unique(switches_);
    switches_.erase(repeated.begin(), repeated.end());
  }

  bool HasBreak(const Bucket& bucket) const {
    return std::ranges::any_of(breaks_, [&](size_t place) {
      return place >= bucket.first && place < bucket.last;
    });
  }

  // Adds the longest length that needs no plan by its live bytes, and lengths at even
  // distances among the batches of longer ones. `trained`: all that are trained.
  void AddQuantiles(const std::vector<size_t>& trained) {
    const auto with_plan = std::ranges::find_if(trained, [&](size_t k) {
      return graph::Simulate(problem_.lengths[k].trace, {}).peak_bytes >
             DeviceBytes();
    });
    if (with_plan != trained.begin()) switches_.push_back(*std::prev(with_plan));
    int64_t batches = 0;
    for (auto k = with_plan; k != trained.end(); ++k) {
      batches += problem_.counts[*k];
    }
    const auto most = static_cast<int64_t>(kMostSwitches - 1);
    int64_t before = 0;
    int64_t part = 1;  // of `most`, that the next switch ends
    for (auto k = with_plan; k != trained.end(); ++k) {
      before += problem_.counts[*k];
      if (before * most < batches * part) continue;
      switches_.push_back(*k);
      while (before * most >= batches * part) ++part;
    }
  }

  // Returns the best plan of a bucket for a budget, with means over its batches.
  const Plan& PlanOf(const Bucket& bucket, int64_t budget_bytes) {
    const auto key = std::make_pair(bucket, budget_bytes);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    std::unique_ptr<BucketProblem>& solved = problems_[bucket];
    if (solved == nullptr) {
      solved = std::make_unique<BucketProblem>(question_, bucket);
    }
    // A quarter of the time that is left is for this plan.
    solver::SearchLimits limits = clock_.Remaining();
    limits.time_limit_s /= 4;
    return plans_
        .emplace(key,
                 PlanFor(solved->families(), budget_bytes, limits).plan)
        .first->second;
  }

  // Returns the batches of a bucket as a share of all.
  double ShareOf(const Bucket& bucket) const {
    double batches = 0;
    for (size_t k = bucket.first; k <= bucket.last; ++k) {
      batches += static_cast<double>(problem_.counts[k]);
    }
    return batches / static_cast<double>(problem_.Batches());
  }

  // The cheapest way from the shortest length to the longest with at most so many
  // buckets.
  struct Path {
    double ms = kNoTable;
    std::vector<Bucket> buckets = {};
  };
  Path PathThrough(int64_t budget_bytes, bool of_bounds) {
    // Indexed by the number of buckets, then by the last switch.
    const auto most = static_cast<size_t>(most_plans_);
    std::vector<std::vector<Path>> best(
        most + 1, std::vector<Path>(switches_.size()));
    for (size_t count = 1; count <= most; ++count) {
      for (size_t last = 0; last < switches_.size(); ++last) {
        // Only a path to the longest length may have fewer buckets after it.
        if (count == most && last + 1 < switches_.size()) continue;
        best[count][last] = best[count - 1][last];
        for (size_t before = 0; before <= last; ++before) {
          const bool is_first = before == 0;
          if (!is_first && count == 1) continue;
          const Bucket bucket{is_first ? FirstOf()
                                       : Next(switches_[before - 1]),
                              switches_[last]};
          const double ms_before =
              is_first ? 0 : best[count - 1][before - 1].ms;
          if (ms_before == kNoTable) continue;
          if (HasBreak(bucket)) continue;
          const Plan& plan = PlanOf(bucket, budget_bytes);
          if (!plan.HasPlan()) continue;
          const double ms = ms_before + ShareOf(bucket) * (of_bounds
                                                               ? plan.bound_ms
                                                               : plan.recompute_ms);
          if (ms >= best[count][last].ms) continue;
          Path path{.ms = ms};
          if (!is_first) path.buckets = best[count - 1][before - 1].buckets;
          path.buckets.push_back(bucket);
          best[count][last] = std::move(path);
        }
      }
    }
    return best[most].back();
  }

  LengthSteps StepsOf(const Buckets& buckets) {
    return LiveSteps(
        problem_, [&](size_t k) -> const std::vector<PlannedModule>& {
          const auto own =
              std::ranges::find_if(buckets, [&](const PlannedBucket& b) {
                return k <= b.bucket.last;
              });
          return PlanOf(own->bucket, own->budget_bytes).modules;
        });
  }

  void Try(int64_t budget_bytes) {
    const Path path = PathThrough(budget_bytes, /*of_bounds=*/false);
    DeviceTrial trial{.budget_bytes = budget_bytes,
                      .has_plan = path.ms < kNoTable};
    Buckets buckets;
    for (const Bucket& bucket : path.buckets) {
      buckets.push_back({.bucket = bucket, .budget_bytes = budget_bytes});
      trial.live_bytes = std::max(trial.live_bytes,
                                  PlanOf(bucket, budget_bytes).peak_bytes);
    }
    if (trial.has_plan) {
      const LengthSteps steps = StepsOf(buckets);
      trial.ms = MeanRecomputeMs(problem_, steps);
      RunTrial(trial, question_.device, DeviceBytes(),
               [&](bool makes_state_first) {
                 return RunOf(problem_, steps, makes_state_first);
               });
    }
    if (!trial.has_plan) {
      const Plan& longest =
          PlanOf({switches_.back(), switches_.back()}, budget_bytes);
      search_.least_budget_bytes = std::max(
          search_.least_budget_bytes, longest.minimum_budget_bytes.value_or(0));
    }
    search_.trials.push_back(std::move(trial));
    buckets_.push_back(std::move(buckets));
  }

  int64_t DeviceBytes() const {
    return search_.memory_bytes - search_.reserve_bytes;
  }

  // Raises the budget of each entry as far as the run ends.
  void Raise(LengthTable& table, const DeviceSetting& setting) {
    for (PlannedBucket& entry : table.buckets) {
      int64_t low = entry.budget_bytes;
      int64_t high = search_.memory_bytes;
      for (int k = 0; k < kMostRaises && low < high && !IsStopped(); ++k) {
        const int64_t before = entry.budget_bytes;
        const int64_t next = k == 0 ? high : low + (high - low) / 2;
        const Plan& plan = PlanOf(entry.bucket, next);
        const bool is_better =
            plan.HasPlan() && plan.recompute_ms <
                                  PlanOf(entry.bucket, before).recompute_ms;
        if (!is_better) break;
        entry.budget_bytes = next;
        const std::optional<PlanDevice> use = FindDeviceUse(
            RunOf(problem_, StepsOf(table.buckets), setting.makes_state_first),
            setting, DeviceBytes());
        if (use) {
          table.device = *use;
          low = next;
        } else {
          entry.budget_bytes = before;
          high = next;
        }
      }
    }
  }

  // Returns the plan of an entry with statements about a step of its longest length.
  Plan StatedPlan(const PlannedBucket& entry) {
    Plan plan = PlanOf(entry.bucket, entry.budget_bytes);
    const graph::Trace& trace = problem_.lengths[entry.bucket.last].trace;
    const auto with_segments = WithSegmentsOf(trace, plan.modules);
    const graph::Trace& of_plan = with_segments ? *with_segments : trace;
    const graph::Profile profile = graph::Aggregate(of_plan);
    const PlanEffect effect = ComputeEffect(profile, plan.modules, plan.memory,
                                            plan.tradeoff, &of_plan);
    plan.budget_bytes = search_.memory_bytes;
    plan.status = PlanStatus::kFeasible;
    plan.limit.reset();
    plan.recompute_ms = effect.recompute_ms;
    plan.bound_ms = plan.gap = kNotStated;
    plan.any_schedule.reset();
    plan.baseline.runtime_ms = StepMs(profile);
    plan.overhead = plan.baseline.runtime_ms > 0
                        ? plan.recompute_ms / plan.baseline.runtime_ms
                        : 0;
    for (PlannedModule& unit : plan.modules) unit.recompute_ms = kNotStated;
    return plan;
  }

  PlanTable TableOf(const LengthTable& best) {
    PlanTable table{.model = problem_.traced.front().trace.model.name,
                    .memory_bytes = search_.memory_bytes,
                    .reserve_bytes = search_.reserve_bytes,
                    .device = best.device,
                    .most_plans = question_.most_plans};
    for (const size_t place : switches_) {
      table.switches.push_back(problem_.lengths[place].length);
    }
    for (const PlannedBucket& entry : best.buckets) {
      table.entries.push_back(
          {.longest = problem_.lengths[entry.bucket.last].length,
           .plan = StatedPlan(entry)});
    }
    table.recompute_ms = best.ms;
    table.bound_ms = std::min(bound_ms_, best.ms);
    table.seconds = clock_.Seconds();
    return table;
  }

  static LengthAnswer WithoutPlan(const Plan& plan) {
    return {.is_infeasible = plan.status == PlanStatus::kInfeasible,
            .minimum_budget_bytes = plan.minimum_budget_bytes};
  }

  const LengthQuestion& question_;
  const LengthProblem& problem_;
  std::vector<size_t> switches_;  // places of lengths, ascending
  std::vector<size_t> breaks_;  // the step of the next length has other operators
  int64_t most_plans_ = 1;  // of the tables that are searched
  double bound_ms_ = 0;     // of the last of them
  TrialSearch search_;      // of them
  std::vector<Buckets> buckets_;  // by trial
  std::map<Bucket, std::unique_ptr<BucketProblem>> problems_;
  std::map<std::pair<Bucket, int64_t>, Plan> plans_;
  solver::LimitClock clock_;
};

}  // namespace

LengthAnswer AskForLengths(const LengthQuestion& question) {
  LengthAnswer answer = LengthSearch(question).Find();
  if (!answer.table) return answer;
  if (const auto broken = BrokenTableRule(
          *question.problem, *answer.table,
          {.ac_units = question.options.ac_units,
           .fsdp_units = question.options.fsdp_units,
           .max_units = question.options.max_units,
           .patterns = question.options.patterns})) {
    throw std::logic_error("the table fails its check: " + *broken);
  }
  return answer;
}

}  // namespace acplan::problems
