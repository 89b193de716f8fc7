#pragma once

#include <cstdlib>

#include "solver/search.h"
#include "tests/support/repetitions.h"

// The number of random instances of a kind that a metamorphic test goes
// through: the test's own number, or by the environment
//   ACPLAN_INSTANCES=20000   so many
//   ACPLAN_FIRST=19281       from that one on
//   ACPLAN_MILLISECONDS=50   ending every search after that time

namespace acplan::test_support {

inline int NumberOf(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

constexpr int kUsualInstances = 200;

inline int First() { return NumberOf("ACPLAN_FIRST", 0); }
// Returns the number of instances. Under AddressSanitizer searches are slow and
// every instance is of the same few kinds of steps: a third of the repetitions
// of other tests.
inline int Instances(int usual = kUsualInstances) {
  const int repetitions = Repetitions(usual);
  return NumberOf("ACPLAN_INSTANCES",
                  kEvery == 1 ? repetitions : (repetitions + 2) / 3);
}
inline int End(int usual = kUsualInstances) {
  return First() + Instances(usual);
}

// Returns limits that end searches after so many labels, or after that time.
inline solver::SearchLimits LimitsOfInstances(int labels) {
  if (const int ms = NumberOf("ACPLAN_MILLISECONDS", 0)) {
    return {.time_limit_s = ms / 1000.};
  }
  return {.node_limit = labels};
}

}  // namespace acplan::test_support
