#include "problems/offload/offload_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/link_time.h"
#include "problems/offload/movables.h"
#include "tests/problems/trace/trace_case.h"

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::Simulation;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Small steps whose units skip.
const TraceCaseKind kKind = {
    .name = "offload",
    .step = {.shares_storages = true, .repeats = true, .writes = true},
    .skips = true};

// Returns the least cost of these units over all choices of offloaded
// operators; infinity if none keeps the limits, nothing if there are too many.
std::optional<double> LeastCost(const TraceCase& c,
                                const std::vector<CheckpointedModule>& units,
                                int64_t budget_bytes,
                                const LinkLimits& limits) {
  std::vector<CheckpointedModule> choice = units;
  std::vector<OperatorDecision*> kept_decisions;
  for (CheckpointedModule& unit : choice) {
    for (OperatorDecision& decision : unit.decisions) {
      if (decision == OperatorDecision::kSave)
        kept_decisions.push_back(&decision);
    }
  }
  if (kept_decisions.size() > 8) return std::nullopt;
  double least = kInfinite;
  for (uint32_t mask = 0; mask < uint32_t{1} << kept_decisions.size(); ++mask) {
    for (size_t k = 0; k < kept_decisions.size(); ++k) {
      *kept_decisions[k] = (mask >> k & 1) != 0 ? OperatorDecision::kOffload
                                                : OperatorDecision::kSave;
    }
    const std::optional<Simulation> use = SimulatedUse(c.problem, choice);
    const bool fits = use && use->peak_bytes <= budget_bytes &&
                      use->offload.host_peak_bytes <= limits.host_memory_bytes;
    if (!fits) continue;
    const double stall_ms =
        graph::TimeOnLink(c.trace, *use, limits.bytes_per_second).stall_ms;
    least = std::min(least, use->recompute_ms + stall_ms);
  }
  return least;
}

// The search starts from every plan, so the best of all choices is the most
// that it may find.
TEST(OffloadSearch, FindsNothingThatIsNotThere) {
  std::mt19937 random(8);
  int questions = 0, found_count = 0, best = 0, better = 0;
  for (unsigned seed = 0; questions < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const TraceCase c(kKind, seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, 200);
    if (!plans || plans->plans.size() < 2) continue;
    const int64_t most = plans->plans.front().peak_bytes;
    const int64_t fewest = plans->LeastPeakBytes();
    const int64_t budget =
        most - (most - fewest) * static_cast<int64_t>(1 + random() % 5) / 4;
    LinkLimits limits;
    limits.bytes_per_second = 1e3 * std::pow(10.0, random() % 5);
    if (random() % 2 == 0) {
      limits.host_memory_bytes = static_cast<int64_t>(random() % 20'000);
    }
    OffloadSearch search({.problem = c.problem,
                          .budget_bytes = budget,
                          .limits = limits,
                          .is_stopped = [] { return false; }});
    double least = kInfinite;
    bool is_known = true;
    for (const TracePlans::Plan& plan : plans->plans) {
      search.Start(plan.modules);
      const std::optional<double> cost =
          LeastCost(c, plan.modules, budget, limits);
      is_known = is_known && cost.has_value();
      if (cost) least = std::min(least, *cost);
    }
    search.Improve();
    if (!is_known) continue;
    ++questions;
    const double without_ms = plans->LeastMs(budget).value_or(kInfinite);
    EXPECT_LE(search.CostMs(), without_ms + 1e-6);
    EXPECT_GE(search.CostMs(), least - 1e-6);
    if (!search.best()) continue;
    ++found_count;
    best += search.CostMs() <= least + 1e-6 ? 1 : 0;
    better += search.CostMs() < without_ms - 1e-6 ? 1 : 0;
    const OffloadPlan& plan = *search.best();
    EXPECT_EQ(SimulatedUse(c.problem, plan.modules), plan.use);
    EXPECT_LE(plan.use.peak_bytes, budget);
    EXPECT_LE(plan.use.offload.host_peak_bytes, limits.host_memory_bytes);
  }
  EXPECT_GT(found_count, 100);
  EXPECT_GT(better, 20);
  // The search is greedy, and nearly always right on small steps.
  EXPECT_GE(best, found_count * 9 / 10) << best << " of " << found_count;
}

}  // namespace
}  // namespace acplan::problems
