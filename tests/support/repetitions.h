#pragma once

namespace acplan::test_support {

// How many random cases of one kind a test goes through: `wanted`, and an eighth
// under AddressSanitizer, which sees in the first ones what it can see, for ten
// times the time a case. The release build compares the answers of all.
constexpr int Repetitions(int wanted) {
#ifdef __SANITIZE_ADDRESS__
  return (wanted + 7) / 8;
#else
  return wanted;
#endif
}

}  // namespace acplan::test_support
