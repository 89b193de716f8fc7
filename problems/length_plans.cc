#include "problems/length_plans.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "graph/trace/aggregate.h"
#include "graph/trace/simulation.h"
#include "problems/check/plan_effect.h"
#include "problems/check/table_rules.h"
#include "problems/length_buckets.h"
#include "problems/plan/plan_host.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/plan_streams.h"

// An entry of a table is a plan for the lengths of an interval, its bucket. Operators are the
// same for all of them, and no storage has more bytes than for the longest. So the best
// plan for a bucket is that of one step: the longest one's, in which each operator takes
// the mean time of the bucket's batches. The engines solve it and prove a bound.
//
// For one budget of live bytes all buckets are solved, and a shortest path
// through them is the best table (length_buckets.h). The allocator decides whether its run ends
// on the device, so smaller budgets are tried as for one length
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

// A bucket with the budget of its plan.
struct PlannedBucket {
  Bucket bucket;
  int64_t budget_bytes = 0;
};
using Buckets = std::vector<PlannedBucket>;

// Returns the plan with statements about this step in place of those about a bucket.
Plan StatedFor(const graph::Trace& trace, Plan plan, int64_t memory_bytes) {
  const auto with_segments = WithSegmentsOf(trace, plan.modules);
  const graph::Trace& of_plan = with_segments ? *with_segments : trace;
  const graph::Profile profile = graph::Aggregate(of_plan);
  const PlanEffect effect = ComputeEffect(profile, plan.modules, plan.memory,
                                          plan.tradeoff, &of_plan);
  plan.budget_bytes = memory_bytes;
  plan.status = PlanStatus::kFeasible;
  plan.limit.reset();
  plan.recompute_ms = effect.recompute_ms;
  plan.bound_ms = plan.gap = kNotStated;
  plan.any_schedule.reset();
  plan.times_off.reset();
  plan.baseline.runtime_ms = StepMs(profile);
  for (PlannedModule& unit : plan.modules) unit.recompute_ms = kNotStated;
  const graph::Simulator simulator(of_plan);
  if (plan.host) plan.host = HostOf(of_plan, simulator, plan);
  plan.streams = StreamsOf(of_plan, simulator, plan);
  plan.overhead = OverheadOf(plan);
  return plan;
}

class LengthSearch {
 public:
  explicit LengthSearch(const LengthQuestion& question)
      : question_(question),
        problem_(*question.problem),
        clock_(question.options.limits),
        search_{.memory_bytes = question.device.memory_bytes,
                .reserve_bytes = question.options.reserve_bytes},
        switches_(FindSwitches(problem_, question.switches, question.most_plans,
                               DeviceBytes())),
        plans_(problem_, question.options, question.segments, clock_) {}

  LengthAnswer Find() && {
    const Plan& longest = PlanOfLongest(search_.memory_bytes);
    if (!longest.HasPlan()) {
      return {.is_infeasible = longest.status == PlanStatus::kInfeasible,
              .minimum_budget_bytes = longest.minimum_budget_bytes};
    }
    std::optional<LengthTable> best;
    std::optional<int64_t> least_device;
    // Tables of fewer plans leave other holes, and may recompute less.
    double bound_ms = 0;
    const int64_t most_plans =
        std::min<int64_t>(question_.most_plans, std::ssize(switches_.places));
    for (int64_t plans = 1; plans <= most_plans; ++plans) {
      search_.bound_ms =
          plans_
              .PathThrough(switches_, plans, search_.memory_bytes,
                           /*has_bounds=*/true)
              .ms;
      if (search_.bound_ms == BucketPath::kNone) continue;
      bound_ms = search_.bound_ms;
      std::optional<LengthTable> table = BestTable(plans);
      if (table && (!best || table->ms < best->ms)) best = std::move(table);
      const std::optional<int64_t> least = search_.LeastDevice();
      if (least) least_device = std::min(least_device.value_or(*least), *least);
      if (IsStopped()) break;
    }
    if (!best) return {.least_device_bytes = least_device};
    if (IsStopped()) {
      bound_ms = plans_
                     .PathThrough(switches_, most_plans, search_.memory_bytes,
                                  /*has_bounds=*/true)
                     .ms;
    }
    return {.table = TableOf(*best, bound_ms)};
  }

 private:
  // A table that fits.
  struct LengthTable {
    Buckets buckets;
    PlanDevice device;
    double ms = 0;
  };

  const Plan& PlanOfLongest(int64_t budget_bytes) {
    const size_t longest = switches_.places.back();
    return plans_.PlanOf({.first = longest, .last = longest}, budget_bytes);
  }

  // Returns the best table of so many plans, if one fits.
  std::optional<LengthTable> BestTable(int64_t most_plans) {
    search_.trials.clear();
    buckets_.clear();
    Try(search_.memory_bytes, most_plans);
    for (int k = 0; k < kMostBudgets && !IsStopped(); ++k) {
      const std::optional<int64_t> next = search_.NextBudget();
      if (!next) break;
      Try(*next, most_plans);
    }
    const auto [best, setting] = search_.BestOfAll();
    if (best == nullptr) return std::nullopt;
    LengthTable table{
        .buckets = buckets_[static_cast<size_t>(best - search_.trials.data())],
        .device = {}};
    const DeviceSetting& setting_of_best = question_.device.settings[setting];
    table.device =
        FindDeviceUse(RunOf(problem_, StepsOf(table.buckets), setting_of_best),
                      setting_of_best, DeviceBytes())
            .value();
    Raise(table, setting_of_best);
    table.ms = MeanRecomputeMs(problem_, StepsOf(table.buckets));
    return table;
  }

  bool IsStopped() const {
    return clock_.Stop() != solver::StoppedBy::kNothing;
  }

  LengthSteps StepsOf(const Buckets& buckets) {
    return LiveSteps(
        problem_, [&](size_t k) -> const std::vector<PlannedModule>& {
          const auto own = std::ranges::find_if(
              buckets,
              [&](const PlannedBucket& b) { return k <= b.bucket.last; });
          return plans_.PlanOf(own->bucket, own->budget_bytes).modules;
        });
  }

  void Try(int64_t budget_bytes, int64_t most_plans) {
    const BucketPath path = plans_.PathThrough(
        switches_, most_plans, budget_bytes, /*has_bounds=*/false);
    DeviceTrial trial{.budget_bytes = budget_bytes,
                      .has_plan = path.ms < BucketPath::kNone};
    Buckets buckets;
    for (const Bucket& bucket : path.buckets) {
      buckets.push_back({.bucket = bucket, .budget_bytes = budget_bytes});
      trial.live_bytes = std::max(
          trial.live_bytes, plans_.PlanOf(bucket, budget_bytes).peak_bytes);
    }
    if (trial.has_plan) {
      const LengthSteps steps = StepsOf(buckets);
      trial.ms = MeanRecomputeMs(problem_, steps);
      RunTrial(
          trial, question_.device, DeviceBytes(),
          [&](const DeviceSetting& setting) {
            return RunOf(problem_, steps, setting);
          },
          /*finds_least=*/search_.Floor() == nullptr);
    }
    if (!trial.has_plan) {
      search_.least_budget_bytes = std::max(
          search_.least_budget_bytes,
          PlanOfLongest(budget_bytes).minimum_budget_bytes.value_or(0));
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
        const Plan& plan = plans_.PlanOf(entry.bucket, next);
        const bool is_better =
            plan.HasPlan() &&
            plan.recompute_ms <
                plans_.PlanOf(entry.bucket, before).recompute_ms;
        if (!is_better) break;
        entry.budget_bytes = next;
        const std::optional<PlanDevice> use =
            FindDeviceUse(RunOf(problem_, StepsOf(table.buckets), setting),
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

  PlanTable TableOf(const LengthTable& best, double bound_ms) {
    PlanTable table{.model = problem_.traced.front().trace.model.name,
                    .memory_bytes = search_.memory_bytes,
                    .reserve_bytes = search_.reserve_bytes,
                    .device = best.device,
                    .most_plans = question_.most_plans};
    table.device.gpu = question_.device.gpu;
    for (const size_t place : switches_.places) {
      table.switches.push_back(problem_.lengths[place].length);
    }
    for (const PlannedBucket& entry : best.buckets) {
      const graph::TraceOfLength& longest = problem_.lengths[entry.bucket.last];
      table.entries.push_back(
          {.longest = longest.length,
           .plan = StatedFor(longest.trace,
                             plans_.PlanOf(entry.bucket, entry.budget_bytes),
                             search_.memory_bytes)});
    }
    table.recompute_ms = best.ms;
    table.bound_ms = std::min(bound_ms, best.ms);
    table.seconds = clock_.Seconds();
    return table;
  }

  const LengthQuestion& question_;
  const LengthProblem& problem_;
  solver::LimitClock clock_;
  TrialSearch search_;  // of tables of so many plans
  LengthSwitches switches_;
  BucketPlans plans_;
  std::vector<Buckets> buckets_;  // by trial
};

}  // namespace

LengthAnswer AskForLengths(const LengthQuestion& question) {
  LengthAnswer answer = LengthSearch(question).Find();
  if (!answer.table) return answer;
  if (const auto broken =
          BrokenTableRule(*question.problem, *answer.table,
                          {.ac_units = question.options.ac_units,
                           .fsdp_units = question.options.fsdp_units,
                           .max_units = question.options.max_units,
                           .patterns = question.options.patterns})) {
    throw std::logic_error("the table fails its check: " + *broken);
  }
  return answer;
}

}  // namespace acplan::problems
