#include "graph/run/length_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

TEST(LengthOrderTest, ReadsBatchesInTheirOrder) {
  EXPECT_THAT(ParseLengths("# batches\n512\r\n\n  384 \neval 512\n7", "f", {}),
              ElementsAre(LengthStep{512}, LengthStep{384},
                          LengthStep{.length = 512, .is_evaluation = true},
                          LengthStep{7}));
}

TEST(LengthOrderTest, DrawsFromAHistogram) {
  const std::string text = "100 1\n200 6\n300 3\n";
  const std::vector<LengthStep> order =
      ParseLengths(text, "f", LengthDraw{.steps = 2000, .seed = 4});
  std::map<int64_t, int> counts;
  for (const LengthStep& step : order) ++counts[step.length];
  ASSERT_EQ(order.size(), 2000);
  EXPECT_NEAR(counts[100], 200, 60);
  EXPECT_NEAR(counts[200], 1200, 120);
  EXPECT_NEAR(counts[300], 600, 100);
  EXPECT_EQ(order, ParseLengths(text, "f", LengthDraw{2000, 4}));
  EXPECT_NE(order, ParseLengths(text, "f", LengthDraw{2000, 5}));
  // The same on all machines.
  EXPECT_THAT(ParseLengths(text, "f", LengthDraw{4, 1}),
              ElementsAre(LengthStep{200}, LengthStep{200}, LengthStep{200},
                          LengthStep{100}));
  EXPECT_EQ(ParseLengths(text, "f", {}).size(), 200);
}

TEST(LengthOrderTest, RefusesOtherFiles) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "f: expected at least one batch of training"},
      {"eval 4\n", "f: expected at least one batch of training"},
      {"4\n5 6\n",
       "f: line 2: expected batches in their order or a histogram, found both"},
      {"4 5 6\n",
       "f: line 1: expected a length, eval and a length, or a length and its "
       "count, found \"4 5 6\""},
      {"\n-4\n",
       "f: line 2: expected a length, eval and a length, or a length and its "
       "count, found \"-4\""},
      {"4.5\n",
       "f: line 1: expected a length, eval and a length, or a length and its "
       "count, found \"4.5\""},
      {"eval\n",
       "f: line 1: expected a length, eval and a length, or a length and its "
       "count, found \"eval\""},
      {"4 0\n",
       "f: line 1: expected a length, eval and a length, or a length and its "
       "count, found \"0\""},
      {"4 1\n4 2\n", "f: line 2: length 4 stands twice"}};
  for (const auto& [text, complaint] : cases) {
    EXPECT_THAT([&] { ParseLengths(text, "f", {}); },
                ThrowsMessage<InputError>(complaint));
  }
  EXPECT_THAT([] { ParseLengths("4\n", "f", LengthDraw()); },
              ThrowsMessage<InputError>("f: expected a histogram to draw from, "
                                        "found batches in their order"));
  std::string many;
  for (int k = 0; k <= kMostLengthSteps; ++k) many += "4\n";
  EXPECT_THAT(
      [&] { ParseLengths(many, "f", {}); },
      ThrowsMessage<InputError>("f: line 2001: expected at most 2000 batches"));
}

}  // namespace
}  // namespace acplan::graph
