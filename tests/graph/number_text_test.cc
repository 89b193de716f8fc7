#include "graph/base/number_text.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/support/repetitions.h"

namespace acplan::graph {

namespace {

using test_support::Repetitions;

TEST(NumberTextTest, FloatsAreWhatPythonPrints) {
  EXPECT_EQ(FloatText(0), "0.0");
  EXPECT_EQ(FloatText(-0.0), "-0.0");
  EXPECT_EQ(FloatText(10), "10.0");
  EXPECT_EQ(FloatText(0.1), "0.1");
  EXPECT_EQ(FloatText(640.0 / 3), "213.33333333333334");
  EXPECT_EQ(FloatText(5.65563076923077e-07), "5.65563076923077e-07");
  EXPECT_EQ(FloatText(0.0001), "0.0001");
  EXPECT_EQ(FloatText(0.00001), "1e-05");
  EXPECT_EQ(FloatText(1e15), "1000000000000000.0");
  EXPECT_EQ(FloatText(1e16), "1e+16");
  EXPECT_EQ(FloatText(1.5e300), "1.5e+300");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(NumberTextTest, EveryFloatReadsBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < Repetitions(20'000); ++i) {
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    const std::string text = FloatText(value);
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
    double read = 0;
    std::from_chars(text.data(), text.data() + text.size(), read);
    EXPECT_EQ(read, value) << text;
  }
}

TEST(NumberTextTest, SuffixesAreOfBase1000) {
  EXPECT_EQ(HumanText(0, 3, " "), "0.000 ");
  EXPECT_EQ(HumanText(999, 3, " "), "999.000 ");
  EXPECT_EQ(HumanText(1000, 3, " "), "1.000 k");
  EXPECT_EQ(HumanText(174'616'117'248.0, 3, " "), "174.616 G");
  EXPECT_EQ(HumanText(1.008e12, 0, ""), "1T");
  EXPECT_EQ(HumanText(2.5e15, 0, ""), "2P");
  EXPECT_EQ(HumanText(3.5e15, 0, ""), "4P");
  EXPECT_EQ(HumanText(1e18, 1, " "), "1.0 E");
  EXPECT_EQ(HumanText(1e22, 1, " "), "10000.0 E");
}

}  // namespace

}  // namespace acplan::graph
