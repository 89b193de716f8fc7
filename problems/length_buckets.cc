#include "problems/length_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/length_traces.h"
#include "graph/trace/simulation.h"
#include "problems/ask.h"

namespace acplan::problems {
namespace {

// Returns the places of the lengths that are trained.
std::vector<size_t> TrainedPlaces(const LengthProblem& problem) {
  std::vector<size_t> places;
  for (size_t k = 0; k < problem.counts.size(); ++k) {
    if (problem.counts[k] > 0) places.push_back(k);
  }
  return places;
}

std::vector<size_t> RoundedDown(const LengthProblem& problem,
                                const std::vector<size_t>& trained,
                                const std::vector<int64_t>& lengths) {
  std::vector<size_t> places;
  for (const int64_t length : lengths) {
    const auto above = std::ranges::find_if(
        trained, [&](size_t k) { return problem.lengths[k].length > length; });
    if (above != trained.begin()) places.push_back(*std::prev(above));
  }
  return places;
}

std::vector<size_t> Quantiles(const LengthProblem& problem,
                              const std::vector<size_t>& trained,
                              int64_t device_bytes) {
  std::vector<size_t> places;
  const auto with_plan = std::ranges::find_if(trained, [&](size_t k) {
    return graph::Simulate(problem.lengths[k].trace, {}).peak_bytes >
           device_bytes;
  });
  if (with_plan != trained.begin()) places.push_back(*std::prev(with_plan));
  int64_t batches = 0;
  for (auto k = with_plan; k != trained.end(); ++k) {
    batches += problem.counts[*k];
  }
  const auto most = static_cast<int64_t>(kMostSwitches - 1);
  int64_t before = 0;
  int64_t part = 1;  // of `most`, that the next switch ends
  for (auto k = with_plan; k != trained.end(); ++k) {
    before += problem.counts[*k];
    if (before * most < batches * part) continue;
    places.push_back(*k);
    while (before * most >= batches * part) ++part;
  }
  return places;
}

double BatchesIn(const LengthProblem& problem, const Bucket& bucket) {
  double batches = 0;
  for (size_t k = bucket.first; k <= bucket.last; ++k) {
    batches += static_cast<double>(problem.counts[k]);
  }
  return batches;
}

bool HasBreak(const LengthSwitches& switches, const Bucket& bucket) {
  return std::ranges::any_of(switches.breaks, [&](size_t place) {
    return place >= bucket.first && place < bucket.last;
  });
}

}  // namespace

LengthSwitches FindSwitches(const LengthProblem& problem,
                            const std::vector<int64_t>& lengths,
                            int64_t most_plans, int64_t device_bytes) {
  const std::vector<size_t> trained = TrainedPlaces(problem);
  LengthSwitches switches{
      .places = lengths.empty() ? Quantiles(problem, trained, device_bytes)
                                : RoundedDown(problem, trained, lengths),
      .breaks = {}};
  for (size_t k = 0; k + 1 < trained.size(); ++k) {
    const graph::TraceOfLength& length = problem.lengths[trained[k]];
    const graph::TraceOfLength& next = problem.lengths[trained[k + 1]];
    if (graph::AreAlike(length.trace, next.trace)) continue;
    switches.breaks.push_back(trained[k]);
    if (std::ssize(switches.breaks) < most_plans) continue;
    throw InputError(fmt::format(
        "plans: the steps up to length {} and from {} on run different "
        "operators: expected more plans than {}",
        length.length, next.length, most_plans));
  }
  std::vector<size_t>& places = switches.places;
  places.insert(places.end(), switches.breaks.begin(), switches.breaks.end());
  places.push_back(trained.back());
  std::ranges::sort(places);
  const auto repeated = std::ranges::unique(places);
  places.erase(repeated.begin(), repeated.end());
  return switches;
}

// The step that stands for a bucket.
class BucketProblem {
 public:
  BucketProblem(const LengthProblem& problem, const Bucket& bucket,
                const PlanOptions& options, const SegmentChoice& segments)
      : trace_(StepOf(problem, bucket)),
        profile_(graph::Aggregate(trace_)),
        tree_(profile_),
        families_(problems::BuildFamilies({.profile = &profile_,
                                           .tree = &tree_,
                                           .options = options,
                                           .trace = &trace_,
                                           .segments = segments})) {}
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

BucketPlans::BucketPlans(const LengthProblem& problem,
                         const PlanOptions& options,
                         const SegmentChoice& segments,
                         const solver::LimitClock& clock)
    : problem_(problem),
      options_(options),
      segments_(segments),
      clock_(clock) {}

BucketPlans::~BucketPlans() = default;

const Plan& BucketPlans::PlanOf(const Bucket& bucket, int64_t budget_bytes) {
  const auto key = std::make_pair(bucket, budget_bytes);
  const auto solved_before = plans_.find(key);
  if (solved_before != plans_.end()) return solved_before->second;
  std::unique_ptr<BucketProblem>& problem = problems_[bucket];
  if (problem == nullptr) {
    problem =
        std::make_unique<BucketProblem>(problem_, bucket, options_, segments_);
  }
  solver::SearchLimits limits = clock_.Remaining();
  limits.time_limit_s /= 4;
  return plans_
      .emplace(key, PlanFor(problem->families(), budget_bytes, limits).plan)
      .first->second;
}

double BucketPlans::MsOf(const Bucket& bucket, int64_t budget_bytes,
                         bool has_bounds) {
  const Plan& plan = PlanOf(bucket, budget_bytes);
  const double share =
      BatchesIn(problem_, bucket) / static_cast<double>(problem_.Batches());
  if (plan.HasPlan()) {
    return share * (has_bounds ? plan.bound_ms : plan.recompute_ms);
  }
  // A search that found none may have missed one.
  const bool may_have_plan = plan.status != PlanStatus::kInfeasible;
  return has_bounds && may_have_plan ? 0 : BucketPath::kNone;
}

BucketPath BucketPlans::PathThrough(const LengthSwitches& switches,
                                    int64_t most_buckets, int64_t budget_bytes,
                                    bool has_bounds) {
  const std::vector<size_t> trained = TrainedPlaces(problem_);
  const std::vector<size_t>& places = switches.places;
  // Indexed by the last switch: the best path of at most so many buckets as were added.
  std::vector<BucketPath> best(places.size());
  for (int64_t count = 1; count <= most_buckets; ++count) {
    std::vector<BucketPath> longer = best;
    for (size_t last = 0; last < places.size(); ++last) {
      // Nothing is added behind the last bucket.
      if (count == most_buckets && last + 1 < places.size()) continue;
      for (size_t before = 0; before <= last; ++before) {
        const bool is_first = before == 0;
        if (!is_first && best[before - 1].ms == BucketPath::kNone) continue;
        const Bucket bucket{.first = is_first
                                         ? trained.front()
                                         : *std::ranges::upper_bound(
                                               trained, places[before - 1]),
                            .last = places[last]};
        if (HasBreak(switches, bucket)) continue;
        const double ms = (is_first ? 0 : best[before - 1].ms) +
                          MsOf(bucket, budget_bytes, has_bounds);
        if (ms >= longer[last].ms) continue;
        BucketPath path{.ms = ms};
        if (!is_first) path.buckets = best[before - 1].buckets;
        path.buckets.push_back(bucket);
        longer[last] = std::move(path);
      }
    }
    best = std::move(longer);
  }
  return best.back();
}

}  // namespace acplan::problems
