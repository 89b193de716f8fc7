#include "solver/labels/group_cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::ElementsAre;

// The order of solutions: the least time, the most bytes, later items rather
// than earlier ones.
struct Best {
  double ms = std::numeric_limits<double>::infinity();
  int64_t bytes = 0;
  std::vector<char> take = {};

  auto Rank() const { return std::tuple(ms, -bytes, take); }
};

Best Enumerate(const std::vector<CoverItem>& items, int64_t need) {
  Best best;
  for (unsigned set = 0; set < 1u << items.size(); ++set) {
    Best one{.ms = 0};
    for (size_t i = 0; i < items.size(); ++i) {
      one.take.push_back(static_cast<char>(set >> i & 1));
      if (!one.take.back()) continue;
      one.ms += items[i].ms;
      one.bytes += items[i].bytes;
    }
    if (one.bytes >= need && one.Rank() < best.Rank()) best = one;
  }
  return best;
}

// Returns items with times in eighths, so that sums tie; some times and bytes
// are 0.
std::vector<CoverItem> RandomItems(std::mt19937& random, int most) {
  std::vector<CoverItem> items(random() % (most + 1));
  for (CoverItem& item : items) {
    item.bytes = static_cast<int64_t>(random() % 9);
    item.ms = static_cast<double>(random() % 17) / 8;
    // An item that discards nothing is of no use at any cost.
    if (item.bytes == 0) item.ms += 1;
  }
  return items;
}

TEST(LeastCover, IsTheFirstOfTheBest) {
  std::mt19937 random(11);
  int infeasible = 0;
  for (int round = 0; round < Repetitions(600); ++round) {
    SCOPED_TRACE(round);
    const std::vector<CoverItem> items = RandomItems(random, 10);
    const auto need = static_cast<int64_t>(random() % 45);
    const Cover cover = LeastCover(items, need);
    const Best best = Enumerate(items, need);
    if (best.take.empty() && !items.empty()) {
      ++infeasible;
      EXPECT_EQ(cover.status, SearchStatus::kInfeasible);
      EXPECT_TRUE(cover.take.empty());
      EXPECT_EQ(cover.bound_ms, std::numeric_limits<double>::infinity());
      continue;
    }
    if (items.empty()) continue;
    ASSERT_EQ(cover.status, SearchStatus::kOptimal);
    EXPECT_EQ(cover.stopped_by, StoppedBy::kNothing);
    EXPECT_EQ(cover.ms, best.ms);
    EXPECT_EQ(cover.bound_ms, best.ms);
    EXPECT_EQ(cover.bytes, best.bytes);
    EXPECT_EQ(cover.take, best.take);
    if (HasFailure()) break;
  }
  EXPECT_GT(infeasible, Enough(60));
}

TEST(LeastCover, TakesWhatIsFree) {
  const Cover cover = LeastCover({{3, 0}, {0, 5}, {4, 2}}, 0);
  EXPECT_THAT(cover.take, ElementsAre(1, 0, 0));
  EXPECT_EQ(cover.bytes, 3);
  EXPECT_EQ(cover.ms, 0);
  EXPECT_EQ(LeastCover({}, 0).status, SearchStatus::kOptimal);
  EXPECT_EQ(LeastCover({}, 1).status, SearchStatus::kInfeasible);
}

// Returns items whose bytes and times are nearly proportional, so that none
// dominates another.
std::vector<CoverItem> HardItems() {
  std::mt19937_64 random(3);
  std::vector<CoverItem> items(60);
  for (CoverItem& item : items) {
    item.bytes = static_cast<int64_t>(1'000'000'000 + random() % 1'000'000'000);
    item.ms = static_cast<double>(item.bytes) * 1e-9 +
              static_cast<double>(random() % 1000) * 1e-6;
  }
  return items;
}

TEST(LeastCover, HasAnAnswerAndABoundAtALimit) {
  const std::vector<CoverItem> items = HardItems();
  const int64_t need = 40'123'456'789;
  const Cover cover = LeastCover(items, need, {.node_limit = 50'000});
  EXPECT_EQ(cover.status, SearchStatus::kFeasible);
  EXPECT_EQ(cover.stopped_by, StoppedBy::kNodes);
  EXPECT_GE(cover.bytes, need);
  EXPECT_LT(cover.bound_ms, cover.ms);
  EXPECT_GT(cover.bound_ms, .99 * cover.ms);
}

TEST(LeastCover, StopsWhereItIsToldTo) {
  const std::atomic<bool> interrupted = true;
  const Cover cover =
      LeastCover(HardItems(), 40'123'456'789, {.interrupted = &interrupted});
  EXPECT_EQ(cover.stopped_by, StoppedBy::kInterrupt);
  EXPECT_GE(cover.bytes, 40'123'456'789);
  EXPECT_EQ(
      LeastCover(HardItems(), 40'123'456'789, {.time_limit_s = 0}).stopped_by,
      StoppedBy::kTime);
}

}  // namespace
}  // namespace acplan::solver
