#include "graph/base/indexed_vector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <ranges>
#include <type_traits>
#include <vector>

#include "graph/base/flag.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class AppleId : int32_t {};
enum class PearId : int32_t {};
enum class Colour : char { kRed };

using Weights = IndexedVector<AppleId, double>;

std::vector<AppleId> List(const IdRange<AppleId>& ids) {
  return {ids.begin(), ids.end()};
}

template <typename Vector, typename Index>
concept CanIndex = requires(Vector vector, Index index) {
  vector[index];
};
template <typename A, typename B>
concept CanCompare = requires(A a, B b) {
  a == b;
};
template <typename A, typename B>
concept CanAdd = requires(A a, B b) {
  a + b;
};

// Only ids of its own kind open a vector.
static_assert(CanIndex<Weights, AppleId>);
static_assert(CanIndex<const Weights, AppleId>);
static_assert(!CanIndex<Weights, PearId>);
static_assert(!CanIndex<Weights, int>);
static_assert(!CanIndex<Weights, size_t>);
static_assert(!CanIndex<std::vector<double>, AppleId>);

// Ids of two kinds are not compared or converted, and no id is a number.
static_assert(CanCompare<AppleId, AppleId>);
static_assert(!CanCompare<AppleId, PearId>);
static_assert(!CanCompare<AppleId, int>);
static_assert(!CanAdd<AppleId, int>);
static_assert(!std::is_convertible_v<AppleId, PearId>);
static_assert(!std::is_convertible_v<AppleId, int>);
static_assert(!std::is_convertible_v<int, AppleId>);
static_assert(!std::constructible_from<IdRange<AppleId>, AppleId, PearId>);

static_assert(IdType<AppleId>);
static_assert(!IdType<int32_t>);
static_assert(!IdType<Colour>);
static_assert(std::ranges::random_access_range<IdRange<AppleId>>);
static_assert(sizeof(AppleId) == sizeof(int32_t));
static_assert(sizeof(Flag) == 1);

TEST(IndexedVectorTest, HasItsIdsInOrder) {
  Weights weights;
  EXPECT_THAT(List(weights.ids()), IsEmpty());
  EXPECT_EQ(weights.last_id(), kNone);
  EXPECT_EQ(weights.Add(0.5), AppleId{0});
  EXPECT_EQ(weights.Add(1.5), AppleId{1});
  EXPECT_THAT(List(weights.ids()), ElementsAre(AppleId{0}, AppleId{1}));
  EXPECT_EQ(weights.ids().size(), 2u);
  EXPECT_EQ(weights.end_id(), AppleId{2});
  EXPECT_EQ(weights[AppleId{1}], 1.5);
  weights[AppleId{1}] = 2;
  EXPECT_THAT(weights, ElementsAre(0.5, 2));
  std::vector<AppleId> backwards;
  for (const AppleId a : std::views::reverse(weights.ids())) {
    backwards.push_back(a);
  }
  EXPECT_THAT(backwards, ElementsAre(AppleId{1}, AppleId{0}));
}

TEST(IndexedVectorTest, IsAsItWasFilled) {
  EXPECT_THAT(Weights(2, 0.25), ElementsAre(0.25, 0.25));
  EXPECT_THAT(Weights(std::vector<double>{1, 2}), ElementsAre(1, 2));
  EXPECT_EQ((Weights{1, 2}), Weights(std::vector<double>{1, 2}));
  EXPECT_LT((Weights{1, 2}), (Weights{1, 3}));
}

TEST(IdTest, NoneIsBelowAllOthers) {
  const AppleId none = kNone;
  EXPECT_EQ(none, kNone);
  EXPECT_NE(AppleId{0}, kNone);
  EXPECT_LT(none, AppleId{0});
  EXPECT_EQ(IndexOf(none), -1);
  EXPECT_EQ(Previous(AppleId{0}), kNone);
  EXPECT_EQ(Next(none), AppleId{0});
  EXPECT_THAT((IndexedVector<AppleId, PearId>(2, kNone)),
              ElementsAre(PearId{-1}, PearId{-1}));
}

TEST(IdRangeTest, IsEmptyWhereTheEndIsNotAfterTheFirst) {
  EXPECT_THAT(List({AppleId{2}, AppleId{2}}), IsEmpty());
  EXPECT_THAT(List({AppleId{3}, AppleId{1}}), IsEmpty());
  EXPECT_THAT(List({AppleId{1}, AppleId{3}}),
              ElementsAre(AppleId{1}, AppleId{2}));
  const IdRange range(AppleId{0}, AppleId{10});
  EXPECT_EQ(*std::ranges::lower_bound(range, AppleId{7}), AppleId{7});
}

TEST(FlagTest, IsABool) {
  IndexedVector<AppleId, Flag> is_ripe(2, false);
  EXPECT_FALSE(is_ripe[AppleId{0}]);
  is_ripe[AppleId{0}] = true;
  EXPECT_TRUE(is_ripe[AppleId{0}] && !is_ripe[AppleId{1}]);
  EXPECT_EQ(is_ripe, (IndexedVector<AppleId, Flag>{true, false}));
}

}  // namespace
}  // namespace acplan::graph
