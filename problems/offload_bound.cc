#include "problems/offload_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/allocation.h"
#include "problems/segment_plans.h"

namespace acplan::problems {

using graph::StorageId;
using graph::Time;
using graph::Trace;

namespace {

constexpr int64_t kRoomStorages = 64;
constexpr int kBoundTrials = 4;
constexpr double kBoundShare = 0.25;  // of the time limit
constexpr double kMostBoundSeconds = 2.5;
// Costs whose shares differ by less are equal.
constexpr double kSameShare = 1e-9;
constexpr double kNearShare = 0.01;
constexpr auto kMostCarriedBytes = static_cast<double>(int64_t{1} << 60);

// Returns the bytes that a link carries in a time.
double Carried(double bytes_per_second, double ms) {
  return std::min(kMostCarriedBytes, bytes_per_second * ms / 1e3);
}

// Returns what allocations are larger than their storages.
int64_t RoundingBytes(const Trace& trace) {
  int64_t bytes = 0;
  for (const graph::TraceStorage& storage : trace.storages)
    bytes += graph::AllocatedBytes(storage.bytes) - storage.bytes;
  return bytes;
}

// Returns the bytes of storages that units may hold to which backward does not come back.
int64_t LostBytes(const Families& families) {
  int64_t most = 0;
  for (const FamilyProblem& family : families) {
    const auto* problem =
        std::get_if<TraceProblem>(&family.problem.formulation);
    if (problem == nullptr) continue;
    const Trace& trace = *family.problem.trace;
    std::set<StorageId> storages;
    for (const CandidateCall& candidate : problem->candidates) {
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
  BoundSearch(const Question& question, const Plan& plan,
              const LinkLimits& link, int64_t lost_bytes,
              const solver::SearchLimits& limits)
      : question_(question),
        plan_(plan),
        link_(link),
        lost_bytes_(lost_bytes),
        limits_(limits) {}

  // Plans that cost at most c cost at least the bound for c. So all cost at least the
  // lesser of both, for each c. One falls while the other rises.
  double Run() const {
    double bound = 0;
    double low = 0, high = plan_.CostMs();
    double most = high;
    for (int k = 0; k < kBoundTrials; ++k) {
      const double seconds = limits_.time_limit_s - watch_.Seconds();
      const bool is_interrupted =
          limits_.interrupted != nullptr && limits_.interrupted->load();
      if (seconds <= 0 || is_interrupted) break;
      const double at_most = BoundFor(most, seconds / 2);
      bound = std::max(bound, std::min(most, at_most));
      if (at_most >= most) {
        low = most;
      } else {
        high = most;
      }
      low = std::max(low, bound);
      if (high - low <= kNearShare * high) break;
      most = (low + high) / 2;
    }
    return bound;
  }

 private:
  double BoundFor(double cost_ms, double seconds) const {
    const RoomyStep roomy =
        WithRoomOfLink(*question_.trace, link_, cost_ms, lost_bytes_);
    const graph::Profile profile = graph::Aggregate(roomy.trace);
    const graph::ModuleTree tree(profile);
    Question question = question_;
    question.trace = &roomy.trace;
    question.profile = &profile;
    question.tree = &tree;
    const Families families = BuildFamilies(question);
    solver::SearchLimits limits = limits_;
    limits.time_limit_s = seconds;
    const Plan relaxed =
        PlanFor(families, plan_.budget_bytes + roomy.room_bytes, limits).plan;
    if (relaxed.status == PlanStatus::kInfeasible)
      return std::numeric_limits<double>::infinity();
    return relaxed.HasPlan() ? relaxed.bound_ms : 0;
  }

  const Question& question_;
  const Plan& plan_;
  const LinkLimits& link_;
  const int64_t lost_bytes_;
  const solver::SearchLimits limits_;
  const solver::Stopwatch watch_;
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

Plan WithOffloadBound(const Question& question, const Families& families,
                      Plan plan, const LinkLimits& link,
                      const solver::SearchLimits& limits) {
  if (plan.status != PlanStatus::kFeasible) return plan;
  const solver::Stopwatch watch;
  const solver::SearchLimits of_bound{
      .time_limit_s =
          std::min(kMostBoundSeconds, kBoundShare * limits.time_limit_s),
      .interrupted = limits.interrupted};
  const double bound_ms =
      BoundSearch(question, plan, link, LostBytes(families), of_bound).Run();
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
