#include "cli/terminal/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Terminal kPlain(ColorMode::kNever, false, false);
const Plot::Pen kStar{"*"};

std::vector<std::string> LinesOf(const Plot& plot) {
  return Lines(plot.ToString(kPlain, "x", "y"));
}

int Stars(const std::vector<std::string>& lines) {
  int stars = 0;
  for (const std::string& line : lines) {
    stars += static_cast<int>(std::ranges::count(line, '*'));
  }
  return stars;
}

TEST(PlotTest, HasAxes) {
  const std::vector<std::string> lines = LinesOf(Plot());
  ASSERT_EQ(lines.size(), 1 + 21 + 2 + 1);
  EXPECT_EQ(lines[0], "y");
  EXPECT_EQ(lines[1], "1.00 ┤");
  EXPECT_EQ(lines[2], "     │");
  EXPECT_EQ(lines[11], "0.50 ┤");
  EXPECT_EQ(lines[21], "0.00 ┤");
  EXPECT_THAT(lines[22], StartsWith("     └┬─"));
  EXPECT_THAT(lines[22], EndsWith("─┬"));
  EXPECT_EQ(lines[23],
            "    0.00              0.25              0.50              0.75"
            "              1.00  x");
}

TEST(PlotTest, HasNumbersOfItsOwnAxes) {
  constexpr double kGiB = 1 << 30;
  const std::vector<std::string> lines = Lines(Plot().ToString(
      kPlain, Plot::Axis::OfBytes("budget", 6 * kGiB, 14 * kGiB),
      Plot::Axis::OfMs("recomputed", 104.25)));
  ASSERT_EQ(lines.size(), 1 + 21 + 3 + 1);
  EXPECT_EQ(lines[0], "recomputed (ms)");
  EXPECT_EQ(lines[1], "104.2 ┤");
  EXPECT_EQ(lines[21], "    0 ┤");
  // Numbers stand below their ticks, and all within 80 columns.
  EXPECT_EQ(lines[22].find("┬"), 6 + std::string("└").size());
  EXPECT_EQ(lines[23], "       6" + std::string(17, ' ') + "8" +
                           std::string(16, ' ') + "10" + std::string(16, ' ') +
                           "12" + std::string(16, ' ') + "14");
  EXPECT_THAT(lines[24], EndsWith("  budget (GiB)"));
  EXPECT_EQ(lines[24].size(), 80);
  EXPECT_EQ(Plot::Axis::OfMs("time", 20'000).most, 20);
  EXPECT_EQ(Plot::Axis::OfBytes("memory", 0, kGiB / 2).most, 512);
}

TEST(PlotTest, PointsStandWhereTheyBelong) {
  Plot plot;
  plot.AddPoint(0, 0, kStar);
  plot.AddPoint(1, 1, kStar);
  plot.AddPoint(.5, .5, kStar);
  const std::vector<std::string> lines = LinesOf(plot);
  EXPECT_EQ(lines[1], "1.00 ┤" + std::string(72, ' ') + "*");
  EXPECT_EQ(lines[11], "0.50 ┤" + std::string(36, ' ') + "*");
  EXPECT_EQ(lines[21], "0.00 ┤*");
}

TEST(PlotTest, LeavesOutWhatIsOutside) {
  Plot plot;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [x, y] : {std::pair(-.1, .5),
                             {1.1, .5},
                             {.5, -.1},
                             {.5, 1.1},
                             {nan, .5},
                             {.5, nan},
                             {1e300, 1e300}}) {
    plot.AddPoint(x, y, kStar);
  }
  plot.AddFunction([](double) { return -1e300; }, kStar);
  plot.AddFunction([&](double) { return nan; }, kStar);
  EXPECT_EQ(Stars(LinesOf(plot)), 0);
}

TEST(PlotTest, FunctionsHaveNoGaps) {
  Plot plot;
  plot.AddFunction([](double x) { return x < .5 ? 0 : 1; }, kStar);
  const std::vector<std::string> lines = LinesOf(plot);
  EXPECT_EQ(Stars(lines), 73 + 19);
  EXPECT_EQ(lines[1], "1.00 ┤" + std::string(36, ' ') + std::string(37, '*'));
  EXPECT_EQ(lines[2], "     │" + std::string(36, ' ') + "*");
  EXPECT_EQ(lines[21], "0.00 ┤" + std::string(36, '*'));
}

TEST(PlotTest, LaterCurvesCover) {
  Plot plot;
  plot.AddPoint(0, 0, {"a"});
  plot.AddPoint(0, 0, {"b"});
  EXPECT_EQ(LinesOf(plot)[21], "0.00 ┤b");
}

TEST(PlotTest, HasALegendInColors) {
  Plot plot;
  plot.AddPoint(0, 0, {"o", Plot::Style::kGreen});
  plot.AddLegend({"o", Plot::Style::kGreen}, "points");
  plot.AddLegend({"-"}, "line");
  EXPECT_EQ(LinesOf(plot).back(), "      o points   - line");
  EXPECT_THAT(plot.ToString(kPlain, "x", "y"), Not(HasSubstr("\033")));
  const Terminal colors(ColorMode::kAlways, false, false);
  const std::string text = plot.ToString(colors, "x", "y");
  EXPECT_THAT(text, HasSubstr("0.00 ┤\033[32mo\033[0m\n"));
  EXPECT_THAT(text, HasSubstr("\033[32mo\033[0m points   - line\n"));
}

}  // namespace

}  // namespace acplan::cli
