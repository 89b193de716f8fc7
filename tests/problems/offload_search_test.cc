#include "problems/offload/offload_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/link_time.h"
#include "graph/trace/trace.h"
#include "graph/trace/trace_calls.h"
#include "problems/ask.h"
#include "problems/offload/least_offload.h"
#include "problems/offload/movables.h"
#include "problems/offload_bound.h"
#include "problems/planner.h"
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

// Calls `visit` with each choice of what these units offload, and the step that it makes:
// operators that they save, and arguments that all of their calls have. Returns whether
// there are few enough.
bool VisitChoices(const TraceCase& c, std::vector<CheckpointedModule> units,
                  const std::function<void(const Simulation&)>& visit) {
  struct Item {
    size_t unit = 0;
    bool is_argument = false;
    int32_t place = 0;
  };
  std::vector<Item> items;
  for (size_t u = 0; u < units.size(); ++u) {
    int32_t arguments = INT32_MAX;
    for (const graph::TraceCall& call : c.trace.calls) {
      if (call.module == units[u].module && !call.no_grad) {
        arguments = std::min(arguments, graph::GivenCount(call));
      }
    }
    for (int32_t k = 0; k < arguments; ++k) {
      items.push_back({u, true, k});
    }
    for (size_t k = 0; k < units[u].decisions.size(); ++k) {
      if (units[u].decisions[k] != OperatorDecision::kSave) continue;
      items.push_back({u, false, static_cast<int32_t>(k)});
    }
  }
  if (items.size() > 8) return false;
  const std::vector<CheckpointedModule> saved = units;
  for (uint32_t mask = 0; mask < uint32_t{1} << items.size(); ++mask) {
    units = saved;
    for (size_t k = 0; k < items.size(); ++k) {
      if ((mask >> k & 1) == 0) continue;
      CheckpointedModule& unit = units[items[k].unit];
      if (items[k].is_argument) {
        unit.offloaded_arguments.push_back(items[k].place);
      } else {
        unit.decisions[items[k].place] = OperatorDecision::kOffload;
      }
    }
    const std::optional<Simulation> use = SimulatedUse(c.problem, units);
    if (use) visit(*use);
  }
  return true;
}

// Returns the least cost of these units over all choices of what they offload; infinity
// if none keeps the limits, nothing if there are too many.
std::optional<double> LeastCost(const TraceCase& c,
                                const std::vector<CheckpointedModule>& units,
                                int64_t budget_bytes,
                                const LinkLimits& limits) {
  double least = kInfinite;
  const bool is_known = VisitChoices(c, units, [&](const Simulation& use) {
    const bool fits = use.peak_bytes <= budget_bytes &&
                      use.offload.host_peak_bytes <= limits.host_memory_bytes;
    if (!fits) return;
    const double stall_ms =
        graph::TimeOnLink(c.trace, use, limits.rates).stall_ms;
    least = std::min(least, use.recompute_ms + stall_ms);
  });
  return is_known ? std::optional(least) : std::nullopt;
}

// Returns the bound of plans over a link that is found for a plan.
double BoundOf(const TraceCase& c, const OffloadPlan& best,
               int64_t budget_bytes, const LinkLimits& limits) {
  Question question{.profile = &c.profile, .tree = &c.tree, .trace = &c.trace};
  question.options.memory.model = MemoryModel::kTrace;
  question.options.may_skip = true;
  Plan plan;
  plan.budget_bytes = budget_bytes;
  plan.status = PlanStatus::kFeasible;
  plan.recompute_ms = best.use.recompute_ms;
  plan.offload = PlanOffload{.stall_ms = best.stall_ms};
  return WithOffloadBound(BuildFamilies(question), plan, limits, {}).bound_ms;
}

// The search starts from every plan, so the best of all choices is the most
// that it may find, and no bound is above it.
TEST(OffloadSearch, FindsNothingThatIsNotThere) {
  std::mt19937 random(8);
  int questions = 0, found_count = 0, best = 0, better = 0;
  int dear = 0, bounded = 0;
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
    limits.rates = graph::BothWays(1e3 * std::pow(10.0, random() % 5));
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
    if (plan.CostMs() < 1e-6 || ++dear % 3 != 0) continue;
    const double bound_ms = BoundOf(c, plan, budget, limits);
    EXPECT_LE(bound_ms, least + 1e-6);
    bounded += bound_ms > 1e-6 ? 1 : 0;
  }
  EXPECT_GT(bounded, 5) << "of " << dear / 3;
  EXPECT_GT(found_count, 100);
  EXPECT_GT(better, 20);
  // The search is greedy, and nearly always right on small steps.
  EXPECT_GE(best, found_count * 9 / 10) << best << " of " << found_count;
}

// GPT-2 within its least budget without offload. If a choice begins with what the best plan
// moves, cheap results take the link, and the search ends at 57% of what whole blocks cost.
TEST(OffloadSearch, GivesTheLinkToDearResultsOfEqualBlocks) {
  const graph::Trace trace = graph::ReadTrace(std::string(ACPLAN_DATA_DIR) +
                                              "/traces/gpt2_small.json.gz");
  const graph::Profile profile = graph::Aggregate(trace);
  const graph::ModuleTree tree(profile);
  PlanOptions options;
  options.memory.model = MemoryModel::kTrace;
  options.may_skip = true;
  const PlanningProblem problem =
      BuildPlanningProblem(profile, tree, options, &trace);
  const OffloadSearchQuestion question = {
      .problem = std::get<TraceProblem>(problem.formulation),
      .budget_bytes = 6'557'876'224,
      .limits = {.rates = graph::BothWays(12e9)},
      .is_stopped = [] { return false; }};
  OffloadSearch search(question);
  search.StartFromCovers();
  ASSERT_TRUE(search.best());
  const double whole_ms = search.CostMs();
  search.Improve();
  EXPECT_LT(search.CostMs(), 0.5 * whole_ms);

  OffloadSearch alike_search(question);
  alike_search.StartFromCovers();
  alike_search.ImproveAlike();
  const double alike_ms = alike_search.CostMs();
  EXPECT_LT(alike_ms, 0.8 * whole_ms);
  alike_search.Improve();
  EXPECT_LT(alike_search.CostMs(), alike_ms);
}

// The least peak of all plans and choices is the most that it may find.
TEST(FindLeastOffload, FindsNothingThatIsNotThere) {
  std::mt19937 random(9);
  int questions = 0, least_count = 0, lower = 0;
  for (unsigned seed = 0; questions < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const TraceCase c(kKind, seed);
    const std::optional<TracePlans> plans =
        EnumeratePlans(c.problem, c.options.max_units, 200);
    if (!plans || plans->plans.size() < 2) continue;
    LinkLimits limits;
    if (random() % 3 == 0) {
      limits.host_memory_bytes = static_cast<int64_t>(random() % 20'000);
    }
    int64_t least = INT64_MAX;
    bool is_known = true;
    for (const TracePlans::Plan& plan : plans->plans) {
      is_known &= VisitChoices(c, plan.modules, [&](const Simulation& use) {
        if (use.offload.host_peak_bytes > limits.host_memory_bytes) return;
        least = std::min(least, use.peak_bytes);
      });
    }
    if (!is_known) continue;
    const auto known_plan = std::ranges::min_element(
        plans->plans, {}, &TracePlans::Plan::peak_bytes);
    const LeastOffload answer =
        FindLeastOffload({.problem = c.problem,
                          .limits = limits,
                          .max_units = c.options.max_units,
                          .is_stopped = [] { return false; }},
                         known_plan->modules);
    ++questions;
    EXPECT_GE(answer.peak_bytes, least);
    EXPECT_LE(answer.peak_bytes, plans->LeastPeakBytes());
    least_count += answer.peak_bytes == least ? 1 : 0;
    lower += answer.peak_bytes < plans->LeastPeakBytes() ? 1 : 0;
  }
  EXPECT_GT(lower, 20);
  EXPECT_GT(least_count, questions / 2) << least_count;
}

}  // namespace
}  // namespace acplan::problems
