#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "cli/pictures/heatmap_picture.h"
#include "cli/pictures/picture.h"
#include "cli/pictures/surface_picture.h"
#include "tests/cli/cli_test.h"
#include "tests/cli/xml_check.h"

namespace acplan::cli {

namespace {

using costmodel::RateMap;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kNastyTitle =
    "a & b <i> \"c\" ]]> \x01\xff </script>";

// Returns 1,1 to 4,2, without a rate at 4,1.
RateMap SmallMap() {
  return {{{1, 1, 10.0, "10.0"},
           {1, 2, 14.5, "14.5"},
           {2, 1, 12.25, "12.25"},
           {2, 2, 20.0, "20.0"},
           {4, 1, std::nullopt, ""},
           {4, 2, 13.0, "13.0"}}};
}

std::vector<std::vector<std::string>> MatchesIn(const std::string& text,
                                                const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::vector<std::string>> matches;
  for (std::sregex_iterator match(text.begin(), text.end(), regex);
       match != std::sregex_iterator(); ++match)
    matches.emplace_back(match->begin() + 1, match->end());
  return matches;
}

// Returns x, y and colour of the cell of a pair.
std::vector<std::string> CellOf(const std::string& svg, int tp, int pp) {
  const auto cells = MatchesIn(
      svg,
      fmt::format(R"re(<rect x="(\d+)" y="(\d+)" width="\d+" height="\d+" )re"
                  R"re(fill="(#\w+)"><title>TP {}, PP {}: )re",
                  tp, pp));
  EXPECT_EQ(cells.size(), 1U);
  return cells.front();
}

TEST(PictureTest, ColorsAreThoseOfMatplotlib) {
  EXPECT_EQ(HotColor(0), "#0b0000");
  EXPECT_EQ(HotColor(0.365079), "#ff0000");
  EXPECT_EQ(HotColor(0.746032), "#ffff00");
  EXPECT_EQ(HotColor(1), "#ffffff");
  EXPECT_EQ(HotColor(7), "#ffffff");
  EXPECT_EQ(RainbowColor(0), "#8000ff");
  EXPECT_EQ(RainbowColor(0.25), "#00b4ec");
  EXPECT_EQ(RainbowColor(0.5), "#80ffb4");
  EXPECT_EQ(RainbowColor(1), "#ff0000");
}

TEST(PictureTest, TheCheckOfXmlFindsFaults) {
  EXPECT_EQ(XmlFault("<a b=\"1\"><c/>x &amp; y<![CDATA[<z&]]></a>\n"), "");
  for (const std::string faulty :
       {"<a>", "<a></b>", "</a>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>",
        "<a>&</a>", "<a>></a>", "<a", "<a/><b/>", "x<a/>", "<a b=\"&x;\"/>"})
    EXPECT_NE(XmlFault(faulty), "") << faulty;
}

TEST(HeatmapTest, IsWellFormedWhateverTheTitle) {
  for (const std::string_view title : {std::string_view(), kNastyTitle}) {
    EXPECT_EQ(XmlFault(HeatmapSvg(SmallMap(), title)), "");
    EXPECT_EQ(XmlFault(HeatmapHtml(SmallMap(), title)), "");
    EXPECT_EQ(XmlFault(SurfaceSvg(SmallMap(), title)), "");
    EXPECT_EQ(XmlFault(SurfaceHtml(SmallMap(), title)), "");
  }
  EXPECT_THAT(HeatmapSvg(SmallMap(), kNastyTitle),
              HasSubstr("a &amp; b &lt;i&gt; &quot;c&quot;"));
}

TEST(HeatmapTest, NeedsNoOtherFile) {
  for (const std::string& picture :
       {HeatmapHtml(SmallMap(), "t"), SurfaceHtml(SmallMap(), "t")}) {
    EXPECT_THAT(picture, Not(HasSubstr("src=")));
    EXPECT_THAT(picture, Not(HasSubstr("href=")));
    EXPECT_THAT(picture, Not(HasSubstr("import")));
  }
}

TEST(HeatmapTest, TensorParallelismRisesAndPipelineParallelismGoesRight) {
  const std::string svg = HeatmapSvg(SmallMap(), "");
  const auto x = [&](int tp, int pp) {
    return std::stoi(CellOf(svg, tp, pp)[0]);
  };
  const auto y = [&](int tp, int pp) {
    return std::stoi(CellOf(svg, tp, pp)[1]);
  };
  for (const int tp : {1, 2, 4}) {
    EXPECT_LT(x(tp, 1), x(tp, 2));
    EXPECT_EQ(y(tp, 1), y(tp, 2));
  }
  for (const int pp : {1, 2}) {
    EXPECT_GT(y(1, pp), y(2, pp));
    EXPECT_GT(y(2, pp), y(4, pp));
  }
}

TEST(HeatmapTest, ColorsFromTheLeastToTheMost) {
  const std::string svg = HeatmapSvg(SmallMap(), "");
  EXPECT_EQ(CellOf(svg, 1, 1)[2], HotColor(0));
  EXPECT_EQ(CellOf(svg, 1, 2)[2], HotColor(0.45));
  EXPECT_EQ(CellOf(svg, 2, 2)[2], HotColor(1));
  EXPECT_EQ(CellOf(svg, 4, 1)[2], "#d0d0d0");
  EXPECT_THAT(svg, HasSubstr("TP 4, PP 1: none"));
}

TEST(HeatmapTest, TextIsReadOnItsColor) {
  const auto texts =
      MatchesIn(HeatmapSvg(SmallMap(), ""),
                R"re(fill="(black|white)"[^>]*>([\d.]+)</text>)re");
  EXPECT_THAT(texts,
              testing::UnorderedElementsAre(
                  ElementsAre("white", "10"), ElementsAre("black", "14.5"),
                  ElementsAre("white", "12.25"), ElementsAre("black", "20"),
                  ElementsAre("white", "13")));
  EXPECT_EQ(TextColorOn("#ffffff"), "black");
  EXPECT_EQ(TextColorOn("#000000"), "white");
  EXPECT_EQ(TextColorOn("#ff0000"), "black");  // 5.3 beside 4.0
  EXPECT_EQ(TextColorOn("#757575"), "white");  // 4.6 beside 4.5
  EXPECT_EQ(TextColorOn("#767676"), "black");  // 4.5 beside 4.6
}

TEST(HeatmapTest, SaysWhatItShows) {
  for (const std::string& picture :
       {HeatmapSvg(SmallMap(), ""), SurfaceSvg(SmallMap(), "")}) {
    EXPECT_THAT(picture, HasSubstr(">Samples a second by tensor and pipeline "
                                   "parallelism</text>"));
    EXPECT_THAT(picture, HasSubstr(">samples/s</text>"));
  }
  EXPECT_THAT(HeatmapSvg(SmallMap(), ""), HasSubstr(">no rate</text>"));
  const RateMap whole{{{8, 4, 7.0, "7.0"}}};
  EXPECT_THAT(HeatmapSvg(whole, ""), Not(HasSubstr(">no rate</text>")));
}

TEST(HeatmapTest, PagesHaveATableOfTheRates) {
  RateMap map = SmallMap();
  map.cells[3].rate = 1234.5678;
  for (const std::string& page : {HeatmapHtml(map, ""), SurfaceHtml(map, "")}) {
    EXPECT_THAT(page,
                HasSubstr("<tr><th>2</th><td>12.25</td><td>1235</td></tr>"));
    EXPECT_THAT(page, HasSubstr("<tr><th>4</th><td></td><td>13</td></tr>"));
  }
}

TEST(HeatmapTest, OneCellIsAPictureToo) {
  const RateMap map{{{8, 4, 7.0, "7.0"}}};
  EXPECT_EQ(XmlFault(HeatmapSvg(map, "")), "");
  EXPECT_EQ(CellOf(HeatmapSvg(map, ""), 8, 4)[2], HotColor(0));
}

// Returns x and y of the dot of a pair.
std::vector<double> DotOf(const std::string& svg, int tp, int pp) {
  const auto dots = MatchesIn(
      svg, fmt::format(
               R"re(<circle transform="translate\(([\d.]+),([\d.]+)\)"[^>]*>)re"
               R"re(<title>TP {}, PP {}: )re",
               tp, pp));
  EXPECT_EQ(dots.size(), 1U);
  return {std::stod(dots[0][0]), std::stod(dots[0][1])};
}

TEST(SurfaceTest, HasADotForEachRateAndAFaceWhereAllFourCornersHaveOne) {
  const std::string svg = SurfaceSvg(SmallMap(), "");
  EXPECT_EQ(MatchesIn(svg, "(<circle)").size(), 5U);
  // The floor, two walls, and one face of the surface.
  EXPECT_EQ(MatchesIn(svg, "(<polygon)").size(), 4U);
  EXPECT_THAT(svg, HasSubstr(RainbowColor((56.75 / 4 - 10) / 10)));
}

// From an azimuth of 205 degrees both parallelisms grow away from the eye,
// tensor parallelism to the right and pipeline parallelism to the left.
TEST(SurfaceTest, IsSeenFromAnAzimuthOf205Degrees) {
  const RateMap flat{{{1, 1, 5.0, "5.0"},
                      {1, 2, 5.0, "5.0"},
                      {2, 1, 5.0, "5.0"},
                      {2, 2, 5.0, "5.0"}}};
  const std::string svg = SurfaceSvg(flat, "");
  EXPECT_LT(DotOf(svg, 1, 1)[0], DotOf(svg, 2, 1)[0]);
  EXPECT_GT(DotOf(svg, 1, 1)[0], DotOf(svg, 1, 2)[0]);
  EXPECT_GT(DotOf(svg, 1, 1)[1], DotOf(svg, 2, 1)[1]);
  EXPECT_GT(DotOf(svg, 1, 1)[1], DotOf(svg, 1, 2)[1]);
  EXPECT_GT(DotOf(svg, 1, 2)[1], DotOf(svg, 2, 2)[1]);
}

TEST(SurfaceTest, HigherRatesAreHigherUp) {
  RateMap map = SmallMap();
  const double before = DotOf(SurfaceSvg(map, ""), 2, 1)[1];
  map.cells[2].rate = 19.0;
  EXPECT_LT(DotOf(SurfaceSvg(map, ""), 2, 1)[1], before);
}

class SurfaceScriptTest : public CliTest {};

// Runs if node is installed.
TEST_F(SurfaceScriptTest, TurnsWhatThePageShows) {
  if (std::system("command -v node >/dev/null") != 0)
    GTEST_SKIP() << "no node here";
  PutFile("page.html", SurfaceHtml(SmallMap(), "t"));
  const Outcome outcome =
      Process("node", {ACPLAN_SURFACE_SCRIPT_TEST, "page.html"}, folder())
          .Wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

}  // namespace

}  // namespace acplan::cli
