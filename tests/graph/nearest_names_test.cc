#include "graph/base/nearest_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using NearNames = std::vector<std::string>;

size_t NaiveDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1,
                                     std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0)
        d[i][j] = i + j;
      else
        d[i][j] = std::min({d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1),
                            d[i - 1][j] + 1, d[i][j - 1] + 1});
    }
  }
  return d[a.size()][b.size()];
}

// Returns as many of the last components of `name` as `like` has.
std::string LastComponents(const std::string& name, const std::string& like) {
  auto dots = std::ranges::count(name, '.') - std::ranges::count(like, '.');
  std::string rest = name;
  for (; dots > 0; --dots) rest = rest.substr(rest.find('.') + 1);
  return rest;
}

NearNames NaiveNearest(const std::string& name, const NearNames& names,
                       size_t count) {
  auto ends_in_it = [&](const std::string& k) {
    return k.ends_with("." + name);
  };
  NearNames result;
  for (const std::string& k : names)
    if (ends_in_it(k)) result.push_back(k);
  std::vector<std::tuple<size_t, size_t, size_t>> others;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string compared = LastComponents(names[i], name);
    const size_t distance = NaiveDistance(name, compared);
    if (!ends_in_it(names[i]) &&
        distance <= std::max(name.size(), compared.size()) / 2) {
      size_t common = 0;
      while (common < std::min(name.size(), compared.size()) &&
             name[common] == compared[common])
        ++common;
      others.emplace_back(distance, name.size() - common, i);
    }
  }
  std::ranges::sort(others);
  for (auto [distance, rest, i] : others) result.push_back(names[i]);
  if (result.size() > count) result.resize(count);
  return result;
}

TEST(NearestNames, FindsTypingErrors) {
  const NearNames names = {"GPT.h.0.attn", "GPT.h.1.attn", "GPT.h.0.mlp",
                           "GPT"};
  EXPECT_THAT(NearestNames("GPT.h.0.atn", names, 1),
              ElementsAre("GPT.h.0.attn"));
  EXPECT_THAT(NearestNames("GPT.h.0.mpl", names, 1),
              ElementsAre("GPT.h.0.mlp"));
}

TEST(NearestNames, ComparesTheLastComponents) {
  const NearNames names = {"GPT2LMHeadModel.transformer.h.0.attn",
                           "GPT2LMHeadModel.transformer.h.0.mlp"};
  EXPECT_THAT(NearestNames("h.0.atn", names, 1), ElementsAre(names[0]));
}

TEST(NearestNames, PutsNamesThatEndInItFirst) {
  const NearNames names = {"h.00", "GPT.h.0", "XPT.h.0", "GPTh.0"};
  EXPECT_THAT(NearestNames("h.0", names),
              ElementsAre("GPT.h.0", "XPT.h.0", "h.00"));
  EXPECT_THAT(NearestNames("h.0", names, 1), ElementsAre("GPT.h.0"));
}

TEST(NearestNames, LeavesOutWhatIsFarAway) {
  const NearNames names = {"encoder", "decoder"};
  EXPECT_THAT(NearestNames("xyz", names), IsEmpty());
  EXPECT_THAT(NearestNames("", names), IsEmpty());
  EXPECT_THAT(NearestNames("encoder", NearNames()), IsEmpty());
  EXPECT_THAT(NearestNames("encoder", names, 0), IsEmpty());
}

TEST(NearestNames, BreaksTiesByTheBeginningAndByOrder) {
  const NearNames names = {"ba", "ac", "ab", "ad"};
  EXPECT_THAT(NearestNames("aa", names, 2), ElementsAre("ac", "ab"));
  EXPECT_THAT(NearestNames("h10", NearNames{"a10", "h20", "h100"}, 1),
              ElementsAre("h100"));
}

TEST(NearestNames, EqualsTheDefinitionOnRandomNames) {
  std::mt19937 random(7);
  auto name = [&] {
    std::string text(1 + random() % 9, 'a');
    for (char& c : text) c = "ab."[random() % 3];
    return text;
  };
  for (int round = 0; round < Repetitions(300); ++round) {
    NearNames names(20);
    std::ranges::generate(names, name);
    const std::string wanted_name = name();
    const int count = 1 + static_cast<int>(random() % 5);
    EXPECT_EQ(NearestNames(wanted_name, names, count),
              NaiveNearest(wanted_name, names, static_cast<size_t>(count)))
        << wanted_name;
  }
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kManyNames = 20'000;
#else
constexpr int kManyNames = 100'000;
#endif

TEST(NearestNames, CopesWithManyLongNames) {
  NearNames names;
  for (int i = 0; i < kManyNames; ++i)
    names.push_back("Model.encoder.layers." + std::to_string(i) + "." +
                    std::string(static_cast<size_t>(i % 700), 'x'));
  EXPECT_EQ(NearestNames("Model.encodr.layers.77.", names, 1).size(), 1u);
  EXPECT_LE(NearestNames(std::string(100'000, 'y'), names, 3).size(), 3u);
}

}  // namespace
}  // namespace acplan::graph
