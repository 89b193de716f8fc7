#include "solver/cut_off.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Repetitions;

void ForEachPoint(const Milp& milp,
                  const std::function<void(const std::vector<double>&)>& use,
                  std::vector<double> x = {}) {
  if (x.size() == milp.columns.size()) {
    use(x);
    return;
  }
  const Milp::Column& column = milp.columns[x.size()];
  x.push_back(0);
  for (double v = column.lower; v <= column.upper; ++v) {
    x.back() = v;
    ForEachPoint(milp, use, x);
  }
}

// Returns whether some values of the columns after x keep every row except the
// first.
bool CanBeCompleted(const Milp& milp, const std::vector<double>& x) {
  Milp rest = milp;
  rest.rows.erase(rest.rows.begin());
  for (size_t j = 0; j < x.size(); ++j) {
    rest.columns[j].lower = rest.columns[j].upper = x[j];
  }
  bool can = false;
  ForEachPoint(rest, [&](const std::vector<double>& all) {
    can = can || LargestViolation(rest, all) == 0;
  });
  return can;
}

TEST(WithCutOff, CutsThePointAndNoneThatKeepsTheRow) {
  std::mt19937 random(1);
  for (int round = 0; round < Repetitions(300); ++round) {
    SCOPED_TRACE(round);
    Milp milp;
    Milp::Row row;
    std::vector<double> x;
    double sum = 0;
    const int n = 1 + static_cast<int>(random() % 4);
    for (int j = 0; j < n; ++j) {
      const double lower = static_cast<double>(random() % 3) - 1;
      const double size = static_cast<double>(random() % 4);
      milp.AddColumn(
          {.lower = lower, .upper = lower + size, .is_integer = true});
      x.push_back(lower + static_cast<double>(random() % 4 %
                                              static_cast<int>(size + 1)));
      const double coefficient = static_cast<double>(random() % 7) - 3;
      row.terms.push_back({j, coefficient});
      sum += coefficient * x.back();
    }
    const double breach = 1 + static_cast<double>(random() % 3);
    if (random() % 2 == 0) {
      row.lower = sum + breach;
    } else {
      row.upper = sum - breach;
    }
    milp.AddRow(row);
    const Milp cut = WithCutOff(milp, 0, x);
    EXPECT_FALSE(CanBeCompleted(cut, x));
    ForEachPoint(milp, [&](const std::vector<double>& point) {
      if (LargestViolation(milp, point) == 0) {
        EXPECT_TRUE(CanBeCompleted(cut, point));
      }
    });
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace acplan::solver
