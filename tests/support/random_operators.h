#pragma once

#include <cstdint>
#include <random>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::test_support {

struct RandomOperatorsOptions {
  int most_ops = 18;           // at least one
  int64_t most_memory = 1000;  // bytes of an operator
  // Probabilities for the whole module:
  double arbitrary_runtimes = 0.2;  // else multiples of 1/16 ms up to 1 ms
  double force_store_random = 0.3;
  // Probabilities for an operator:
  double no_memory = 0.2;
  double no_runtime = 0.15;
  double repeated = 0.3;  // memory and run-time of an earlier operator
  double view_like = 0.12;
  double random = 0.12;
  double in_place = 0.15;
  double in_place_on_itself = 0.2;  // of operators in place
  double in_place_anywhere = 0.1;   // of the others: on a later operator too
};

// Returns statistics of a module that a profile may hold. They may contradict
// themselves.
graph::SacStatistics RandomOperators(
    std::mt19937& random, const RandomOperatorsOptions& options = {});

// Returns whether all run-times are multiples of 1/16 ms, whose sums are exact.
bool HasExactRuntimes(const graph::SacStatistics& sac);

// Returns up to two patterns; the names that RandomOperators gives match some
// of them.
graph::OperatorPatterns RandomPatterns(std::mt19937& random);

}  // namespace acplan::test_support
