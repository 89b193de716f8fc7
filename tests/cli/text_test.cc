#include "cli/terminal/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace acplan::cli {

namespace {

const Terminal kPlainTerminal(ColorMode::kNever, false, false);

TEST(TextTest, RatiosAreNeverRoundedDown) {
  EXPECT_EQ(FormatRatioUp(0), "0.0000");
  EXPECT_EQ(FormatRatioUp(0.5), "0.5000");
  EXPECT_EQ(FormatRatioUp(0.72505), "0.7251");
  EXPECT_EQ(FormatRatioUp(0.72500001), "0.7251");
  EXPECT_EQ(FormatRatioUp(0.7250), "0.7250");
  EXPECT_EQ(FormatRatioUp(0.1 + 0.2), "0.3000");  // a hair above 0.3
  EXPECT_EQ(FormatRatioUp(0.99991), "1.0000");
  EXPECT_EQ(FormatRatioUp(1), "1.0000");
}

TEST(TextTest, EveryRatioOfFourDigitsStaysAsItIs) {
  for (int i = 0; i <= 10'000; ++i) {
    const std::string text = FormatRatioUp(i / 1e4);
    EXPECT_EQ(text, i == 10'000 ? "1.0000"
                                : "0." + std::to_string(10'000 + i).substr(1));
  }
}

TEST(TextTest, PercentagesAreNeverRoundedDown) {
  EXPECT_EQ(FormatPercentUp(0), "0.00%");
  EXPECT_EQ(FormatPercentUp(0.0647), "6.47%");
  EXPECT_EQ(FormatPercentUp(0.064701), "6.48%");
  EXPECT_EQ(FormatPercentUp(1e-12), "0.00%");
  EXPECT_EQ(FormatPercentUp(1e-6), "0.01%");
  EXPECT_EQ(FormatPercentUp(1.5), "150.00%");
}

TEST(TextTest, Milliseconds) {
  EXPECT_EQ(FormatMs(0), "0.00 ms");
  EXPECT_EQ(FormatMs(16.456), "16.46 ms");
  EXPECT_EQ(FormatMs(1234.5), "1234.50 ms");
}

TEST(TextTest, ChangesHaveASign) {
  EXPECT_EQ(FormatChange(200, 140), "-30.0%");
  EXPECT_EQ(FormatChange(200, 200), "+0.0%");
  EXPECT_EQ(FormatChange(200, 250), "+25.0%");
  EXPECT_EQ(FormatChange(0, 250), "");
}

TEST(TextTest, CountsHaveThousandsSeparators) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1'234'567), "1,234,567");
  EXPECT_EQ(FormatCount(-999), "-999");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
  EXPECT_EQ(FormatCount(std::numeric_limits<int64_t>::min()),
            "-9,223,372,036,854,775,808");
}

TEST(TextTest, BytesAreGivenInFullToo) {
  EXPECT_EQ(FormatBytesExactly(1), "1 B (1 bytes)");
  EXPECT_EQ(FormatBytesExactly(9'953'203'712),
            "9.27 GiB (9,953,203,712 bytes)");
}

TEST(TextTest, ColumnsAreAlignedByCodePoint) {
  using enum Table::Align;
  Table table({kLeft, kRight, kLeft});
  table.AddRow({"name", "n", "why"});
  table.AddRow({"layer × 4", "12", ""});
  table.AddRow({"größer", "1", "ü"});
  table.AddRule();
  table.AddRow({"sum", "13"});
  EXPECT_EQ(table.ToString(kPlainTerminal),
            "name        n  why\n"
            "layer × 4  12\n"
            "größer      1  ü\n"
            "──────────────────\n"
            "sum        13\n");
}

TEST(TextTest, HeadingsAndRulesAreStyledWhereThereAreColors) {
  using enum Table::Align;
  Table table({kLeft, kRight});
  table.AddRow({"a", "b"});
  table.AddRule();
  table.AddRow({"c", "d"});
  EXPECT_EQ(table.ToString(Terminal(ColorMode::kAlways, false, false)),
            "\033[1ma  b\033[0m\n\033[2m────\033[0m\nc  d\n");
}

}  // namespace

}  // namespace acplan::cli
