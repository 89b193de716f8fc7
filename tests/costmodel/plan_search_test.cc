#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "costmodel/planning/strategy_plan.h"
#include "costmodel/search/search.h"
#include "tests/costmodel/golden_data.h"

namespace acplan::costmodel {
namespace {

SearchProblem Problem(const std::string& model, const std::string& system,
                      int64_t num_procs, int64_t batch) {
  SearchProblem problem;
  problem.model = GoldenModel(model);
  problem.system = GoldenSystem(system);
  problem.num_procs = num_procs;
  problem.max_batch = batch;
  problem.corrections = AllCorrections();
  problem.plans = true;
  return problem;
}

std::vector<SearchProblem> SmallProblems() {
  SearchProblem tight =
      Problem("models/megatron-22B.json", "systems/a100_80g.json", 16, 16);
  SearchProblem offload = Problem("models/gpt3-13B.json",
                                  "custom/systems/slownet_slowmem2.json", 8, 8);
  offload.system.mem1.capacity /= 4;
  SearchProblem odd =
      Problem("custom/models/tiny-odd.json", "systems/a100_80g.json", 8, 12);
  odd.system.mem1.capacity = 3e7;
  odd.corrections.one_batch_size = false;
  return {tight, offload, odd};
}

// Every execution of a space, by the order of the search.
std::vector<Execution> AllOf(const SearchProblem& problem) {
  std::vector<Execution> executions;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    const TierCounts tiers = SearchTiers(problem, unit);
    for (const SearchVariant& variant : SearchVariants(problem, unit)) {
      for (const int64_t size : MicrobatchSizes(problem, unit)) {
        Execution execution = MakeExecution(unit, variant);
        execution.microbatch_size = size;
        for (int t = 0; t < tiers.tensor; ++t) {
          for (int p = 0; p < tiers.pipeline; ++p) {
            for (int d = 0; d < tiers.data; ++d) {
              execution.tensor_par_net = t;
              execution.pipeline_par_net = p;
              execution.data_par_net = d;
              executions.push_back(execution);
            }
          }
        }
      }
    }
  }
  return executions;
}

std::vector<double> RatesOf(const std::vector<Candidate>& candidates) {
  std::vector<double> rates;
  for (const Candidate& candidate : candidates) {
    rates.push_back(candidate.sample_rate);
  }
  return rates;
}

TEST(PlanSearch, FindsWhatPlanningEveryStrategyFinds) {
  for (SearchProblem& problem : SmallProblems()) {
    // Few enough to plan all.
    problem.filters = {ParseKeyFilter("tensor_par=2", "--fix"),
                       ParseKeyFilter("optimizer_sharding=true", "--fix"),
                       ParseKeyFilter("microbatch_size=1,3", "--fix")};
    std::vector<double> rates;
    int64_t good = 0;
    for (const Execution& execution : AllOf(problem)) {
      const StrategyPlan plan =
          PlanStrategy(problem.model, problem.system, execution);
      if (!plan.verdict.Fits()) continue;
      ++good;
      rates.push_back(static_cast<double>(execution.batch_size) /
                      plan.times.total);
    }
    std::ranges::sort(rates, std::greater<>());
    const SearchOutcome outcome = FindBest(problem, {.top_n = 20});
    EXPECT_EQ(outcome.counts.good, good);
    ASSERT_GT(rates.size(), 20);
    rates.resize(20);
    EXPECT_EQ(RatesOf(outcome.best), rates);
    EXPECT_LT(outcome.planned, outcome.counts.good);
  }
}

TEST(PlanSearch, IsNeverBelowFixedPolicies) {
  for (SearchProblem& problem : SmallProblems()) {
    const SearchOutcome plans = FindBest(problem, {});
    problem.plans = false;
    const SearchOutcome fixed = FindBest(problem, {});
    ASSERT_EQ(plans.best.empty(), false);
    if (fixed.best.empty()) continue;
    EXPECT_GE(plans.best[0].sample_rate,
              fixed.best[0].sample_rate * (1 - 1e-12));
    EXPECT_GE(plans.rate_bound, plans.best[0].sample_rate * (1 - 1e-12));
  }
}

TEST(PlanSearch, ARateThatIsKnownChangesNothing) {
  for (SearchProblem& problem : SmallProblems()) {
    const SearchOutcome all = FindBest(problem, {});
    const SearchOutcome known =
        FindBest(problem, {.least_rate = all.best.at(0).sample_rate});
    EXPECT_EQ(RatesOf(known.best), RatesOf(all.best));
    EXPECT_EQ(known.best.at(0).execution, all.best.at(0).execution);
    EXPECT_LE(known.planned, all.planned);
  }
}

TEST(PlanSearch, WhatPlansOfTheBestFixedReachChangesNothing) {
  int compared = 0;
  for (SearchProblem& problem : SmallProblems()) {
    const SearchOutcome all = FindBest(problem, {.top_n = 4});
    SearchProblem fixed = problem;
    fixed.plans = false;
    const SearchOutcome policies = FindBest(fixed, {.top_n = 12});
    const std::vector<Candidate> reached =
        PlanCandidates(problem, policies.best, 4);
    if (reached.size() < 4) continue;
    ++compared;
    const double rate = reached.back().sample_rate;
    EXPECT_LE(rate, all.best.back().sample_rate);
    for (size_t i = 0; i < reached.size(); ++i) {
      EXPECT_LE(reached[i].sample_rate, all.best[i].sample_rate);
    }
    const SearchOutcome known =
        FindBest(problem, {.top_n = 4, .least_rate = rate});
    EXPECT_EQ(RatesOf(known.best), RatesOf(all.best));
  }
  EXPECT_GT(compared, 0);
}

TEST(PlanSearch, MergedBestAreTheBestOfBoth) {
  const auto candidate = [](int64_t procs, double rate) {
    Candidate one;
    one.sample_rate = rate;
    one.execution.num_procs = procs;
    return one;
  };
  const std::vector<Candidate> some = {candidate(1, 5), candidate(2, 3)};
  const std::vector<Candidate> others = {candidate(3, 4), candidate(1, 5),
                                         candidate(4, 1)};
  EXPECT_EQ(RatesOf(MergeBest(some, others, 3)),
            (std::vector<double>{5, 4, 3}));
  EXPECT_EQ(MergeBest(some, others, 9).size(), 4);
  EXPECT_EQ(MergeBest({}, others, 1).at(0).execution.num_procs, 1);
}

TEST(PlanSearch, DoesNotDependOnThreadsOrShards) {
  for (SearchProblem& problem : SmallProblems()) {
    const SearchOutcome one = FindBest(problem, {.top_n = 7, .threads = 1});
    const SearchOutcome four = FindBest(problem, {.top_n = 7, .threads = 4});
    ASSERT_EQ(one.best.size(), four.best.size());
    for (size_t i = 0; i < one.best.size(); ++i) {
      EXPECT_EQ(one.best[i].execution, four.best[i].execution);
    }
    SearchCounts counts;
    double best = 0;
    for (int shard = 1; shard <= 3; ++shard) {
      const SearchOutcome part =
          FindBest(problem, {.top_n = 7, .shard = {shard, 3}});
      counts.total += part.counts.total;
      counts.good += part.counts.good;
      if (!part.best.empty()) best = std::max(best, part.best[0].sample_rate);
    }
    EXPECT_EQ(counts.total, one.counts.total);
    EXPECT_EQ(counts.good, one.counts.good);
    EXPECT_EQ(best, one.best.at(0).sample_rate);
  }
}

TEST(ExecutionFilter, LeavesWhatPasses) {
  SearchProblem problem = SmallProblems().front();
  const std::vector<Execution> all = AllOf(problem);
  for (const char* text :
       {"tensor_par=2,8", "pipeline_par=2..4", "data_par=..2",
        "microbatch_size=2..", "tensor_par_comm_type=rs_ag",
        "tensor_par_overlap=none,pipe", "weight_offload=false",
        "optimizer_sharding=true", "tensor_par_net=0", "datatype=float16"}) {
    problem.filters = {ParseKeyFilter(text, "--fix")};
    const auto passing = std::ranges::count_if(
        all, [&](const Execution& e) { return Passes(problem.filters, e); });
    SearchProblem fixed = problem;
    fixed.plans = false;
    const SearchOutcome outcome = FindBest(problem, {.top_n = 3});
    EXPECT_EQ(outcome.counts.total, passing) << text;
    for (const Candidate& candidate : outcome.best) {
      EXPECT_TRUE(Passes(problem.filters, candidate.execution)) << text;
    }
    for (const Candidate& candidate : FindBest(fixed, {.top_n = 3}).best) {
      EXPECT_TRUE(Passes(problem.filters, candidate.execution)) << text;
    }
  }
}

TEST(ExecutionFilter, RefusesWhatIsNone) {
  for (const char* text :
       {"", "tensor_par", "tensor_par=", "tensor_par=a", "tensor_par=1,",
        "tensor_par=-1", "tensor_par=4..2", "tensor_par=..", "tensor_par=1.5",
        "tensor_par=99999999999999999999", "tensor=1", "weight_offload=1",
        "tensor_par_overlap=rong", "datatype=float1"}) {
    EXPECT_ANY_THROW(ParseKeyFilter(text, "--fix")) << text;
  }
}

}  // namespace
}  // namespace acplan::costmodel
