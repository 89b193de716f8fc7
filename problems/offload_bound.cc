#include "problems/offload_bound.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "graph/trace/allocation.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/policy_memo.h"
#include "problems/trace/trace_search.h"

namespace acplan::problems {

using graph::StorageId;
using graph::Time;
using graph::Trace;

namespace {

constexpr int64_t kRoomStorages = 64;
constexpr int kBoundTrials = 4;
constexpr double kBoundGap = 0.002;
constexpr double kBoundShare = 0.25;  // of the time limit
constexpr double kMostBoundSeconds = 2.5;
// Costs whose shares differ by less are equal.
constexpr double kSameShare = 1e-9;
constexpr double kNearShare = 0.01;
constexpr double kUnboundedMs = std::numeric_limits<double>::infinity();
constexpr auto kMostCarriedBytes = static_cast<double>(int64_t{1} << 60);

// Returns the bytes that a link carries in a time.
double Carried(double bytes_per_second, double ms) {
  return std::min(kMostCarriedBytes, bytes_per_second * ms / 1e3);
}

// Returns the trace problem of a family, as plans that offload have one.
const TraceProblem& FormulationOf(const FamilyProblem& family) {
  return std::get<TraceProblem>(family.problem.formulation);
}

// Returns the bytes of storages that units may hold to which backward does not come back.
int64_t LostBytes(const Families& families) {
  int64_t most = 0;
  for (const FamilyProblem& family : families) {
    const Trace& trace = *family.problem.trace;
    std::set<StorageId> storages;
    for (const CandidateCall& candidate : FormulationOf(family).candidates) {
      if (candidate.first_request != graph::kNever) continue;
      const graph::TraceCall& call = trace.calls[candidate.call];
      storages.insert(call.inputs.begin(), call.inputs.end());
      for (const graph::OperatorId op : call.Operators())
        storages.insert(trace.operators[op].creates.begin(),
                        trace.operators[op].creates.end());
    }
    int64_t bytes = 0;
    for (const StorageId s : storages)
      bytes += graph::AllocatedBytes(trace.storages[s].bytes);
    most = std::max(most, bytes);
  }
  return most;
}

// Looks for the best bound of a plan.
class BoundSearch {
 public:
  BoundSearch(const Families& families, const Plan& plan,
              const LinkLimits& link, const solver::SearchLimits& limits)
      : families_(families),
        plan_(plan),
        link_(link),
        lost_bytes_(LostBytes(families)),
        limits_(limits) {
    for (const FamilyProblem& family : families)
      memos_.emplace_back(FormulationOf(family));
  }

  // Plans that cost at most c cost at least the bound for c. So all cost at least the
  // lesser of both, for each c. The bound falls as c rises: where both meet is between
  // the cs tried, and mostly near where the line through two bounds meets c.
  double Run() {
    double bound = 0;
    double low = 0, high = plan_.CostMs();
    double most = high;
    double before_most = kUnboundedMs, before_bound = kUnboundedMs;
    for (int k = 0; k < kBoundTrials; ++k) {
      const double seconds = limits_.time_limit_s - watch_.Seconds();
      const bool is_interrupted =
          limits_.interrupted != nullptr && limits_.interrupted->load();
      if (seconds <= 0 || is_interrupted) break;
      const double at_most = BoundFor(most, seconds / 2);
      bound = std::max(bound, std::min(most, at_most));
      (at_most >= most ? low : high) = most;
      low = std::max(low, bound);
      if (high - low <= kNearShare * high) break;
      const double slope = (at_most - before_bound) / (most - before_most);
      const double meeting = (at_most - slope * most) / (1 - slope);
      before_most = most;
      before_bound = at_most;
      // Not a number, and so not between them, for a bound without limit.
      most = meeting > low && meeting < high ? meeting : (low + high) / 2;
    }
    return bound;
  }

 private:
  // Returns what plans of all families with the room of that cost recompute at least.
  double BoundFor(double cost_ms, double seconds) {
    const solver::Stopwatch watch;
    double bound = kUnboundedMs;
    for (size_t f = 0; f < families_.size(); ++f) {
      solver::SearchLimits limits = limits_;
      limits.gap = kBoundGap;
      limits.time_limit_s = (seconds - watch.Seconds()) /
                            static_cast<double>(families_.size() - f);
      limits.cut_off = bound;
      if (limits.time_limit_s <= 0) return 0;
      bound = std::min(bound, BoundOfFamily(f, cost_ms, limits));
    }
    return bound;
  }

  double BoundOfFamily(size_t f, double cost_ms,
                       const solver::SearchLimits& limits) {
    const PlanningProblem& family = families_[f].problem;
    const RoomyStep roomy =
        WithRoomOfLink(*family.trace, link_, cost_ms, lost_bytes_);
    // Storages that wait in place of room are of no module, so that the modules and their
    // policies are those of the step without them.
    const TraceProblem problem =
        BuildTraceProblem(roomy.trace, *family.profile, *family.tree,
                          TraceOptionsOf(family.options));
    const int64_t usable = plan_.budget_bytes - plan_.reserve_bytes;
    return SolveTraceProblem(problem, usable + roomy.room_bytes, limits, {},
                             {.memo = &memos_[f]})
        .bound_ms;
  }

  const Families& families_;
  const Plan& plan_;
  const LinkLimits& link_;
  const int64_t lost_bytes_;
  const solver::SearchLimits limits_;
  const solver::Stopwatch watch_;
  std::deque<PolicyMemo> memos_;  // of each family
};

}  // namespace

RoomyStep WithRoomOfLink(const Trace& trace, const LinkLimits& link,
                         double cost_ms, int64_t lost_bytes) {
  RoomyStep roomy{.trace = trace};
  roomy.trace.peak_bytes.reset();
  double passes_ms = 0;
  for (Time k = 0; k < trace.backward_end; ++k)
    passes_ms += trace.operators[graph::OperatorAt(k)].runtime_ms;
  // The bytes that are sent before an operator begins, up to the one from which on less
  // can come back.
  std::vector<double> sent_bytes;
  double before_ms = 0;
  double most_bytes = 0;
  for (Time k = 0; k < trace.backward_end; ++k) {
    const double away = Carried(link.rates.to_host, before_ms + cost_ms);
    const double back =
        Carried(link.rates.to_device, passes_ms - before_ms + cost_ms) +
        static_cast<double>(lost_bytes);
    most_bytes = std::max(most_bytes, std::min(away, back));
    if (back <= away) break;
    sent_bytes.push_back(away);
    before_ms += trace.operators[graph::OperatorAt(k)].runtime_ms;
  }
  if (link.host_memory_bytes < INT64_MAX)
    most_bytes =
        std::min(most_bytes, static_cast<double>(link.host_memory_bytes));
  roomy.room_bytes = graph::AllocatedBytes(
      static_cast<int64_t>(std::ceil(most_bytes)) + RoundingBytes(trace));
  if (sent_bytes.empty()) return roomy;
  // Each of these storages is there while the room lacks that of all before it, and its
  // own. It counts up to the operator during which it is freed.
  const auto lacks = [&](Time k) { return most_bytes - sent_bytes[k]; };
  const int64_t bytes = static_cast<int64_t>(std::max(0.0, lacks(0))) /
                        kRoomStorages / graph::kAllocationUnit *
                        graph::kAllocationUnit;
  Time last = static_cast<Time>(sent_bytes.size()) - 1;
  for (int64_t number = 1; number <= kRoomStorages && bytes > 0; ++number) {
    while (last > 0 && lacks(last) < static_cast<double>(number * bytes))
      --last;
    if (last == 0) break;
    roomy.trace.storages.Add({.bytes = bytes,
                              .category = graph::StorageCategory::kInput,
                              .freed = last});
  }
  return roomy;
}

Plan WithOffloadBound(const Families& families, Plan plan,
                      const LinkLimits& link,
                      const solver::SearchLimits& limits) {
  if (plan.status != PlanStatus::kFeasible) return plan;
  const solver::Stopwatch watch;
  const solver::SearchLimits of_bound{
      .time_limit_s =
          std::min(kMostBoundSeconds, kBoundShare * limits.time_limit_s),
      .interrupted = limits.interrupted};
  const double bound_ms = BoundSearch(families, plan, link, of_bound).Run();
  const double cost_ms = plan.CostMs();
  plan.solver.seconds += watch.Seconds();
  plan.bound_ms = std::min(bound_ms, cost_ms);
  plan.gap = cost_ms > 0 ? 1 - plan.bound_ms / cost_ms : 0;
  if (plan.gap > kSameShare) return plan;
  plan.status = PlanStatus::kOptimal;
  plan.limit.reset();
  plan.bound_ms = cost_ms;
  plan.gap = 0;
  return plan;
}

}  // namespace acplan::problems
