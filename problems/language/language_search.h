#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/language/language.h"
#include "problems/language/trainer_policy.h"
#include "solver/search.h"

namespace acplan::problems {

// The best policy of a language within a budget, with its proof.
struct LanguageSolution {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  TrainerPolicy policy = {};  // if there is one
  std::vector<graph::CheckpointedModule> units = {};
  graph::Simulation use = {};  // of a rank
  double stall_ms = 0;         // what the step waits for the link
  double bound_ms = 0;         // no policy of the language costs less
  int64_t nodes = 0;           // simulated policies

  double CostMs() const { return use.recompute_ms + stall_ms; }

  bool HasPolicy() const {
    return status == solver::SearchStatus::kOptimal ||
           status == solver::SearchStatus::kFeasible;
  }
};

// Returns the time that a step waits for a link; nothing if the host has no room for what is
// offloaded. 0 without a link.
std::optional<double> StallMs(const RestrictedTrace& restriction,
                              const BlockChoice& blocks,
                              const graph::Simulation& use);

// Searches within the limits; of these, time, nodes and the interrupt count. The answer is
// the same on every machine unless a limit is hit.
LanguageSolution SolveLanguage(const RestrictedTrace& restriction,
                               int64_t usable_bytes,
                               const solver::SearchLimits& limits);

// Returns a policy that says less: names are left out, those that spare least first, as
// long as it fits and recomputes at most `most_ms`. The solution has a policy.
LanguageSolution Simplified(const RestrictedTrace& restricted,
                            int64_t usable_bytes, double most_ms,
                            LanguageSolution solution);

// The least peak of a language's policies that offload nothing.
struct LanguageMinimum {
  int64_t peak_bytes = 0;
  bool is_proven = false;
  TrainerPolicy policy = {};
};
LanguageMinimum LeastOfLanguage(const RestrictedTrace& restriction,
                                const solver::SearchLimits& limits);

}  // namespace acplan::problems
