#include "costmodel/search/staged_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "costmodel/planning/strategy_plan.h"

// Planning a strategy takes far longer than evaluating it with a fixed policy,
// and most strategies are hopeless. Thus a search with plans wants to know early
// which rate the n-th best strategy reaches at least: FindBest plans no strategy
// that would be slower even without any recomputation (LeastBatchTime).
//
// The first stage searches the whole space with fixed policies. Its best
// executions, stripped of what they recompute, are strategies of the second
// stage, and good ones; these are planned. Where they are n different
// strategies, the n-th best strategy of the space is no slower than the slowest
// of them: its rate is a least rate that leaves out none of the n best.
// Executions of the first stage that recompute differently are one strategy, so
// that it looks for more than n. Where these are still fewer than n strategies,
// the second stage starts without a least rate of its own.
//
// A front over budgets uses the same idea once more: what fits a budget fits
// each larger one. From the smallest budget on, the rate of the last point is a
// least rate for the next one.
namespace acplan::costmodel {
namespace {

// Executions that the first stage looks for, for each strategy that is wanted:
// most of them come with none, attn_only and full.
constexpr int64_t kExecutionsPerStrategy = 3;

SearchStage RunStage(const SearchProblem& problem, const SearchOptions& options,
                     const SearchRunner& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  SearchOutcome outcome = run(problem, options);
  return {std::move(outcome),
          std::chrono::duration<double>(Clock::now() - start).count()};
}

}  // namespace

StagedOutcome FindBestInStages(const SearchProblem& problem,
                               const SearchOptions& options,
                               const SearchRunner& run) {
  if (!problem.plans) return {RunStage(problem, options, run), std::nullopt};

  SearchProblem with_policies = problem;
  with_policies.plans = false;
  SearchOptions more = options;
  more.top_n = kExecutionsPerStrategy * options.top_n;
  StagedOutcome staged{RunStage(with_policies, more, run), std::nullopt};
  SearchOutcome& fixed = staged.fixed.outcome;
  if (fixed.was_interrupted) {
    fixed.best.resize(
        std::min(fixed.best.size(), static_cast<size_t>(options.top_n)));
    return staged;
  }

  const std::vector<Candidate> reached =
      PlanCandidates(problem, fixed.best, options.top_n);
  SearchOptions narrowed = options;
  if (static_cast<int64_t>(reached.size()) == options.top_n) {
    narrowed.least_rate =
        std::max(narrowed.least_rate, reached.back().sample_rate);
  }
  staged.plans = RunStage(problem, narrowed, run);
  SearchOutcome& plans = staged.plans->outcome;
  if (plans.was_interrupted) {
    plans.best = MergeBest(plans.best, reached, options.top_n);
  }
  return staged;
}

bool IsProven(const SearchOutcome& outcome) {
  return !outcome.was_interrupted && !outcome.best.empty() &&
         outcome.rate_bound <= BestRate(outcome) * (1 + kRateTolerance);
}

double BestRate(const SearchOutcome& outcome) {
  return outcome.best.empty() ? 0 : outcome.best.front().sample_rate;
}

RateFront FindRateFront(SearchProblem problem, SearchOptions options,
                        int64_t budgets, const SearchRunner& run) {
  const double capacity = problem.system.mem1.capacity;
  options.top_n = 1;
  options.least_rate = 0;
  RateFront front;
  for (int64_t i = 1; i <= budgets; ++i) {
    const double budget = std::floor(capacity * static_cast<double>(i) /
                                     static_cast<double>(budgets));
    problem.system.mem1.capacity = budget;
    const StagedOutcome found = FindBestInStages(problem, options, run);
    if (found.WasInterrupted()) {
      front.was_interrupted = true;
      break;
    }
    if (BestRate(found.Answer()) <= options.least_rate) continue;
    front.points.push_back({budget, found.Answer().best.front()});
    options.least_rate = front.points.back().best.sample_rate;
  }
  return front;
}

}  // namespace acplan::costmodel
