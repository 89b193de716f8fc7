#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/search/search.h"

namespace acplan::costmodel {

// Searches a space once: FindBest, or a function that calls it and, for
// example, shows its progress.
using SearchRunner = std::function<SearchOutcome(const SearchProblem& problem,
                                                 const SearchOptions& options)>;

struct SearchStage {
  SearchOutcome outcome;
  double seconds = 0;
};

// The answer of FindBestInStages.
struct StagedOutcome {
  SearchStage fixed;                 // with none, attn_only and full
  std::optional<SearchStage> plans;  // with a plan for each strategy

  // The stage that answers the question.
  const SearchOutcome& Answer() const {
    return plans ? plans->outcome : fixed.outcome;
  }
  bool WasInterrupted() const {
    return fixed.outcome.was_interrupted ||
           (plans && plans->outcome.was_interrupted);
  }
};

// The `options.top_n` fastest strategies of the problem, as FindBest(problem,
// options) finds them. Where recomputation is planned, the space is searched
// with fixed policies first, of which `fixed` holds more than `top_n`, and the
// plans that the best of these have spare the search with plans most of its
// work. An interrupted search has no more than `top_n` candidates, and among
// them those that the first stage led to; where that was interrupted itself,
// there is no second stage. `run` is called once a stage.
StagedOutcome FindBestInStages(const SearchProblem& problem,
                               const SearchOptions& options,
                               const SearchRunner& run = FindBest);

// Returns whether no strategy of the space is faster than the best one found,
// whatever its plan.
bool IsProven(const SearchOutcome& outcome);

// The rate of the fastest candidate; 0 where there is none.
double BestRate(const SearchOutcome& outcome);

// A capacity of the first tier, in bytes, and the fastest strategy that fits.
struct RateFrontPoint {
  double budget = 0;
  Candidate best;
};

// Points by ascending budget. Where the search was interrupted, larger budgets
// are missing.
struct RateFront {
  std::vector<RateFrontPoint> points;
  bool was_interrupted = false;
};

// The fastest strategy at each of `budgets` even shares of the capacity; left
// out where nothing fits, or nothing faster than at a smaller budget.
// `options.top_n` does not matter.
RateFront FindRateFront(SearchProblem problem, SearchOptions options,
                        int64_t budgets, const SearchRunner& run = FindBest);

}  // namespace acplan::costmodel
