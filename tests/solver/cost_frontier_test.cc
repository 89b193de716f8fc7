#include "solver/labels/cost_frontier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Enough;
using test_support::Repetitions;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kSumTolerance = 1e-9;

using Generator = std::mt19937;

// Returns a cost; eighths if `eighths`, so that some are equal.
double RandomCost(Generator& random, bool eighths) {
  if (eighths) return static_cast<double>(random() % 8) / 8;
  return std::uniform_real_distribution<double>(0, 1)(random);
}

// Returns a frontier. The value of each piece is its number, its label
// `first_label` more. Ends are vertices at random unless all are.
CostFrontier RandomFrontier(Generator& random, bool eighths, bool all_vertices,
                            int first_label = 0) {
  CostFrontier frontier;
  auto lo = static_cast<int64_t>(random() % 8);
  double cost = RandomCost(random, eighths);
  for (auto n = 1 + random() % 5; n > 0; --n) {
    const int64_t length = random() % 2 == 0 ? 0 : 1 + random() % 6;
    const double slope = length == 0 ? 0 : RandomCost(random, eighths);
    const auto number = static_cast<int>(frontier.size());
    frontier.push_back({.lo = lo,
                        .hi = lo + length,
                        .cost = cost,
                        .slope = slope,
                        .value = number,
                        .label = first_label + number,
                        .shifted = random() % 2 == 0,
                        .lo_is_vertex = all_vertices || random() % 2 == 0,
                        .hi_is_vertex = all_vertices || random() % 2 == 0});
    if (length == 0)
      frontier.back().hi_is_vertex = frontier[number].lo_is_vertex;
    cost = frontier.back().CostAt(lo + length) + 0.125 +
           RandomCost(random, eighths);
    lo += length + 1 + static_cast<int64_t>(random() % 3);
  }
  return frontier;
}

const FrontierPiece* PieceAt(const CostFrontier& frontier, int64_t bytes) {
  for (const FrontierPiece& p : frontier) {
    if (p.lo <= bytes && bytes <= p.hi) return &p;
  }
  return nullptr;
}

// Returns the cost, which is infinite between the pieces.
double CostAt(const CostFrontier& frontier, int64_t bytes) {
  const FrontierPiece* p = PieceAt(frontier, bytes);
  return p ? p->CostAt(bytes) : kInfinite;
}

// Returns the least cost of at least so many bytes.
double Closure(const CostFrontier& frontier, int64_t bytes) {
  double least = kInfinite;
  for (const FrontierPiece& p : frontier) {
    for (int64_t d = std::max(p.lo, bytes); d <= p.hi; ++d) {
      least = std::min(least, p.CostAt(d));
    }
  }
  return least;
}

void ExpectNearOrBothInfinite(double value, double expected) {
  if (expected == kInfinite) {
    EXPECT_EQ(value, kInfinite);
  } else {
    EXPECT_NEAR(value, expected, kSumTolerance);
  }
}

void ExpectSorted(const CostFrontier& frontier) {
  for (size_t k = 0; k < frontier.size(); ++k) {
    EXPECT_LE(frontier[k].lo, frontier[k].hi);
    EXPECT_GE(frontier[k].slope, 0);
    if (k == 0) continue;
    EXPECT_LT(frontier[k - 1].hi, frontier[k].lo);
    EXPECT_LE(frontier[k - 1].CostAt(frontier[k - 1].hi),
              frontier[k].cost + kSumTolerance);
  }
}

bool IsVertex(const FrontierPiece& p, int64_t bytes) {
  return (bytes == p.lo && p.lo_is_vertex) || (bytes == p.hi && p.hi_is_vertex);
}

constexpr int64_t kMostBytes = 60;  // of the random frontiers

class Envelope : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Costs, Envelope, ::testing::Bool(),
                         [](const auto& eighths) {
                           return eighths.param ? "Eighths" : "Any";
                         });

TEST_P(Envelope, IsThePointwiseMinimumOfTheClosures) {
  Generator random(1);
  for (int round = 0; round < Repetitions(5000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const CostFrontier a = RandomFrontier(random, GetParam(), false);
    const CostFrontier b = RandomFrontier(random, GetParam(), false, 100);
    const CostFrontier both = LowerEnvelope(a, b, Take::kBoth);
    ExpectSorted(both);
    for (int64_t n = 0; n <= kMostBytes; ++n) {
      SCOPED_TRACE(n);
      EXPECT_NEAR(std::min(Closure(both, n), 1e6),
                  std::min({Closure(a, n), Closure(b, n), 1e6}), kSumTolerance);
      const FrontierPiece* piece = PieceAt(both, n);
      if (!piece) continue;
      // Each point is one of the frontier that its label names.
      const FrontierPiece* source = PieceAt(piece->label < 100 ? a : b, n);
      ASSERT_NE(source, nullptr);
      EXPECT_EQ(piece->label, source->label);
      EXPECT_EQ(piece->value, source->value);
      EXPECT_EQ(piece->shifted, source->shifted);
      EXPECT_NEAR(piece->CostAt(n), source->CostAt(n), kSumTolerance);
      EXPECT_EQ(IsVertex(*piece, n), IsVertex(*source, n));
    }
  }
}

TEST_P(Envelope, OfTheFirstIsWhatTheSecondDoesNotBeat) {
  Generator random(2);
  int staying = 0;
  int beaten = 0;
  for (int round = 0; round < Repetitions(5000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const CostFrontier a = RandomFrontier(random, GetParam(), false);
    const CostFrontier b = RandomFrontier(random, GetParam(), false, 100);
    const CostFrontier first = LowerEnvelope(a, b, Take::kFirst);
    ExpectSorted(first);
    for (int64_t n = 0; n <= kMostBytes; ++n) {
      SCOPED_TRACE(n);
      const FrontierPiece* source = PieceAt(a, n);
      const FrontierPiece* piece = PieceAt(first, n);
      if (!source) {
        EXPECT_EQ(piece, nullptr);
        continue;
      }
      const double least = Closure(b, n);
      // Equal points stay, equal costs for fewer bytes do not.
      const double slack = PieceAt(b, n) ? kSumTolerance : -kSumTolerance;
      const bool stays = source->CostAt(n) <= least + slack;
      ++(stays ? staying : beaten);
      ASSERT_EQ(piece != nullptr, stays);
      if (!stays) continue;
      EXPECT_EQ(piece->label, source->label);
      EXPECT_NEAR(piece->CostAt(n), source->CostAt(n), kSumTolerance);
      EXPECT_EQ(IsVertex(*piece, n), IsVertex(*source, n));
    }
  }
  EXPECT_GT(staying, Enough(10000));
  EXPECT_GT(beaten, Enough(10000));
}

TEST(LowerEnvelope, WithNothing) {
  Generator random(3);
  const CostFrontier a = RandomFrontier(random, true, true);
  EXPECT_EQ(LowerEnvelope(a, {}, Take::kBoth).size(), a.size());
  EXPECT_EQ(LowerEnvelope(a, {}, Take::kFirst).size(), a.size());
  EXPECT_EQ(LowerEnvelope({}, a, Take::kBoth).size(), a.size());
  EXPECT_TRUE(LowerEnvelope({}, a, Take::kFirst).empty());
}

TEST(Cut, DropsWhatHasTooFewBytes) {
  Generator random(4);
  for (int round = 0; round < Repetitions(3000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const CostFrontier frontier = RandomFrontier(random, false, false);
    const int64_t need = static_cast<int64_t>(random() % 40) - 3;
    CostFrontier cut = frontier;
    Cut(cut, need);
    ExpectSorted(cut);
    for (int64_t n = 0; n <= kMostBytes; ++n) {
      SCOPED_TRACE(n);
      ExpectNearOrBothInfinite(CostAt(cut, n),
                               n < need ? kInfinite : CostAt(frontier, n));
      const FrontierPiece* piece = PieceAt(cut, n);
      if (!piece) continue;
      const FrontierPiece& source = *PieceAt(frontier, n);
      EXPECT_EQ(piece->label, source.label);
      EXPECT_EQ(piece->value, source.value);
      EXPECT_EQ(IsVertex(*piece, n), n == need || IsVertex(source, n));
    }
  }
}

std::vector<FixedKnot> RandomCurve(Generator& random, bool eighths) {
  std::vector<FixedKnot> curve{
      {static_cast<int64_t>(random() % 4), RandomCost(random, eighths)}};
  double slope = 0;
  for (auto n = random() % 4; n > 0; --n) {
    slope += RandomCost(random, eighths);
    const auto length = 1 + static_cast<int64_t>(random() % 5);
    curve.push_back({curve.back().bytes + length,
                     curve.back().ms + slope * static_cast<double>(length)});
  }
  return curve;
}

// Returns the cost of a whole number of bytes between the first knot and the
// last.
double CurveAt(const std::vector<FixedKnot>& curve, int64_t bytes) {
  size_t k = 1;
  while (k < curve.size() && curve[k].bytes < bytes) ++k;
  if (k >= curve.size()) return curve.back().ms;
  const FixedKnot& from = curve[k - 1];
  const FixedKnot& to = curve[k];
  return from.ms + (to.ms - from.ms) * static_cast<double>(bytes - from.bytes) /
                       static_cast<double>(to.bytes - from.bytes);
}

// Returns the least cost of at least `bytes` split between the frontier and the
// curve.
double NaiveSum(const CostFrontier& frontier,
                const std::vector<FixedKnot>& curve, int64_t bytes) {
  double least = kInfinite;
  for (int64_t m = curve.front().bytes; m <= curve.back().bytes; ++m) {
    least = std::min(least, CurveAt(curve, m) + Closure(frontier, bytes - m));
  }
  return least;
}

class Sum : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Costs, Sum, ::testing::Bool(),
                         [](const auto& eighths) {
                           return eighths.param ? "Eighths" : "Any";
                         });

TEST_P(Sum, IsTheInfimalConvolutionWhereAllEndsAreVertices) {
  Generator random(5);
  for (int round = 0; round < Repetitions(3000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const CostFrontier frontier = RandomFrontier(random, GetParam(), true);
    const std::vector<FixedKnot> curve = RandomCurve(random, GetParam());
    CostFrontier sum = AddCurve(curve, frontier);
    ExpectSorted(sum);
    const bool from_zero = curve.front().bytes == 0;
    // A unit that discards nothing is not in the sum; no unit is as good.
    if (from_zero) sum = LowerEnvelope(frontier, sum, Take::kBoth);
    for (int64_t n = 0; n <= kMostBytes + 20; ++n) {
      SCOPED_TRACE(n);
      double least = NaiveSum(frontier, curve, n);
      if (from_zero) least = std::min(least, Closure(frontier, n));
      ExpectNearOrBothInfinite(Closure(sum, n), least);
    }
  }
}

// Each point names the point of the frontier that it came from, and that point
// and the unit together cost as much. This holds for all vertices.
TEST_P(Sum, EachPointLeadsBackToWhereItCameFrom) {
  Generator random(6);
  for (int round = 0; round < Repetitions(3000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const CostFrontier frontier =
        RandomFrontier(random, GetParam(), round % 2 == 0);
    const std::vector<FixedKnot> curve = RandomCurve(random, GetParam());
    for (const FrontierPiece& piece : AddCurve(curve, frontier)) {
      for (int64_t n = piece.lo; n <= piece.hi; ++n) {
        SCOPED_TRACE(n);
        const int64_t before = piece.shifted ? n - piece.value : piece.value;
        const int64_t amount = n - before;
        EXPECT_GE(amount, curve.front().bytes);
        EXPECT_LE(amount, curve.back().bytes);
        const FrontierPiece* source = PieceAt(frontier, before);
        ASSERT_NE(source, nullptr);
        EXPECT_EQ(piece.label, source->label);
        EXPECT_NEAR(piece.CostAt(n),
                    source->CostAt(before) + CurveAt(curve, amount),
                    kSumTolerance);
        EXPECT_TRUE(piece.shifted || IsVertex(*source, before));
      }
    }
  }
}

TEST(AddCurve, OnlyVerticesAreFollowedByAStretch) {
  const CostFrontier frontier{{.lo = 10,
                               .hi = 14,
                               .cost = 1,
                               .slope = 0.25,
                               .value = 0,
                               .label = 7,
                               .shifted = true,
                               .lo_is_vertex = true,
                               .hi_is_vertex = false}};
  const CostFrontier sum = AddCurve({{0, 0.5}, {8, 1.5}}, frontier);
  // From 10 along the curve, then from 18 along the frontier.
  ASSERT_EQ(sum.size(), 2u);
  EXPECT_EQ(sum[0].lo, 10);
  EXPECT_EQ(sum[0].value, 10);
  EXPECT_FALSE(sum[0].shifted);
  EXPECT_EQ(sum[1].hi, 22);
  EXPECT_EQ(sum[1].value, 8);
  EXPECT_TRUE(sum[1].shifted);
  EXPECT_FALSE(sum[1].hi_is_vertex);
  EXPECT_EQ(CostAt(sum, 22), 3.5);
}

}  // namespace
}  // namespace acplan::solver
