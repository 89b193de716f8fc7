#pragma once

namespace acplan::test_support {

// Of a list of cases, a test takes the first and then every so many-th: under
// AddressSanitizer, which sees in the first ones what it can see, for ten times the
// time a case, an eighth. The release build compares the answers of all.
#ifdef __SANITIZE_ADDRESS__
constexpr int kEvery = 8;
#else
constexpr int kEvery = 1;
#endif

// How many random cases of one kind a test goes through: `wanted`, or an eighth.
constexpr int Repetitions(int wanted) { return (wanted + kEvery - 1) / kEvery; }

// How many of these must be of some sort: more than `wanted`, or than half of what
// would be in proportion, since shares of fewer cases vary more.
constexpr int Enough(int wanted) {
  return kEvery == 1 ? wanted : wanted / (2 * kEvery);
}

}  // namespace acplan::test_support
