#pragma once

namespace acplan::test_support {

// A test takes the first case of a list and then every so many-th. Under
// AddressSanitizer, which finds its errors in the first ones and takes ten
// times as long for a case, that is a sixteenth. The release build compares the
// answers of all.
#ifdef __SANITIZE_ADDRESS__
constexpr int kEvery = 16;
#else
constexpr int kEvery = 1;
#endif

// Returns the number of random cases of one kind that a test goes through:
// `cases`, or a sixteenth.
constexpr int Repetitions(int cases) { return (cases + kEvery - 1) / kEvery; }

// Returns how many of these must be of some sort: more than `cases`, or than
// half of the number in proportion, since shares of fewer cases vary more.
constexpr int Enough(int cases) {
  return kEvery == 1 ? cases : cases / (2 * kEvery);
}

}  // namespace acplan::test_support
