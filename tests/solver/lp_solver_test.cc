#include "solver/lp_solver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Enough;
using test_support::Repetitions;

Milp RandomProgram(std::mt19937& random) {
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  Milp milp;
  milp.objective_offset = draw(-5, 5);
  const int n = 1 + static_cast<int>(random() % 6);
  for (int j = 0; j < n; ++j) {
    const double lower = random() % 2 == 0 ? 0 : draw(-3, 3);
    milp.AddColumn({.lower = lower,
                    .upper = lower + draw(0, 5),
                    .cost = draw(-4, 4) * 1e-3,
                    .is_integer = random() % 2 == 0});
  }
  for (int rows = static_cast<int>(random() % 5); rows > 0; --rows) {
    Milp::Row row;
    double sum = 0;
    for (int j = 0; j < n; ++j) {
      if (random() % 3 == 0) continue;
      row.terms.push_back({j, draw(-3, 3)});
      sum += row.terms.back().coefficient * milp.columns[j].lower;
    }
    if (random() % 2 == 0) row.lower = sum + draw(-4, 2);
    if (row.lower == -kInfinity) row.upper = sum + draw(-2, 4);
    milp.AddRow(std::move(row));
  }
  return milp;
}

// The solution keeps the rows, and duals and reduced costs prove that no other
// is better.
TEST(SolveLp, ProvesItsOptimum) {
  std::mt19937 random(1);
  int optimal = 0;
  for (int round = 0; round < Repetitions(500); ++round) {
    SCOPED_TRACE(round);
    const Milp milp = RandomProgram(random);
    const LpSolution lp = SolveLp(milp);
    if (lp.status == LpStatus::kInfeasible) continue;
    ASSERT_EQ(lp.status, LpStatus::kOptimal);
    ++optimal;
    Milp continuous = milp;
    for (Milp::Column& column : continuous.columns) column.is_integer = false;
    EXPECT_TRUE(IsFeasible(continuous, lp.x));
    EXPECT_NEAR(lp.objective, ObjectiveValue(milp, lp.x), 1e-12);
    double bound = milp.objective_offset;
    for (size_t i = 0; i < milp.rows.size(); ++i) {
      if (std::abs(lp.row_duals[i]) < 1e-10) continue;
      bound += lp.row_duals[i] *
               (lp.row_duals[i] > 0 ? milp.rows[i].lower : milp.rows[i].upper);
    }
    for (size_t j = 0; j < milp.columns.size(); ++j) {
      double price = milp.columns[j].cost;
      for (size_t i = 0; i < milp.rows.size(); ++i) {
        for (const Milp::Term& term : milp.rows[i].terms) {
          if (term.column == static_cast<int>(j)) {
            price -= lp.row_duals[i] * term.coefficient;
          }
        }
      }
      EXPECT_NEAR(price, lp.reduced_costs[j], 1e-9);
      bound +=
          price * (price > 0 ? milp.columns[j].lower : milp.columns[j].upper);
    }
    EXPECT_NEAR(bound, lp.objective, 1e-8);
    if (HasFailure()) break;
  }
  EXPECT_GT(optimal, Enough(200));
}

TEST(SolveLp, TellsWhyThereIsNoOptimum) {
  Milp milp;
  milp.AddColumn({.cost = -1});
  EXPECT_EQ(SolveLp(milp).status, LpStatus::kUnbounded);
  milp.AddRow({.lower = 2, .upper = 2, .terms = {{0, 1}}});
  EXPECT_EQ(SolveLp(milp).objective, -2);
  milp.AddRow({.upper = 1, .terms = {{0, 1}}});
  const LpSolution none = SolveLp(milp);
  EXPECT_EQ(none.status, LpStatus::kInfeasible);
  EXPECT_TRUE(none.x.empty());
  milp.columns[0].cost = NAN;
  EXPECT_THROW(SolveLp(milp), std::invalid_argument);
}

TEST(SolveLp, StopsAtItsLimit) {
  std::mt19937 random(8);
  Milp milp;
  for (int j = 0; j < 60; ++j) {
    milp.AddColumn({.cost = 1 + static_cast<double>(random() % 100)});
  }
  for (int i = 0; i < 60; ++i) {
    Milp::Row row{.lower = 1 + static_cast<double>(random() % 9)};
    for (int j = 0; j < 60; ++j) {
      row.terms.push_back({j, 1 + static_cast<double>(random() % 9)});
    }
    milp.AddRow(std::move(row));
  }
  for (const double limit : {0.0, -1.0}) {
    const LpSolution stopped = SolveLp(milp, limit);
    EXPECT_EQ(stopped.status, LpStatus::kStopped);
    EXPECT_TRUE(stopped.x.empty());
  }
  EXPECT_EQ(SolveLp(milp, 3600).status, LpStatus::kOptimal);
}

}  // namespace
}  // namespace acplan::solver
